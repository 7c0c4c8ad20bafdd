(* Thresholds: what two quorums, and two sets of holders of one secret, have in common. Clients are a finite type. *)
From mathcomp Require Import all_ssreflect.

Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

Section Quorums.

Variable Client : finType.
Variables cohort corrupt : {set Client}.

(* Two sets of q or more out of the cohort, with 2 q > n + corrupt, have a member that is not corrupt. *)
Lemma common_honest_member q (A B : {set Client}) :
  A \subset cohort -> B \subset cohort -> q <= #|A| -> q <= #|B| ->
  #|cohort| + #|corrupt| < 2 * q ->
  exists v, [/\ v \in A, v \in B & v \notin corrupt].
Proof.
move=> inA inB sizeA sizeB enough.
have union : #|A :|: B| <= #|cohort| by apply: subset_leq_card; rewrite subUset inA inB.
have both : #|corrupt| < #|A :&: B|.
  have := cardsUI A B; move: union sizeA sizeB enough; rewrite mul2n -addnn.
  move: #|A| #|B| #|A :|: B| #|A :&: B| #|cohort| #|corrupt| => a b u i n c un qa qb more sum.
  have ab : n + c < u + i by rewrite sum; apply: (leq_trans more); apply: leq_add.
  have : n + c < n + i by apply: (leq_trans ab); rewrite leq_add2r.
  by rewrite ltn_add2l.
have : ~~ (A :&: B \subset corrupt).
  by apply/negP => /subset_leq_card; rewrite leqNgt both.
case/subsetPn => v; rewrite inE => /andP [vA vB] vC.
by exists v; split.
Qed.

(* No two quorums of signers disagree: an honest client signs one pair of sets (U2, U3) only. *)
Theorem quorums_agree (Sets : Type) (signed : Client -> Sets -> Prop) q (A B : {set Client}) (a b : Sets) :
  (forall v x y, v \notin corrupt -> signed v x -> signed v y -> x = y) ->
  A \subset cohort -> B \subset cohort -> q <= #|A| -> q <= #|B| ->
  #|cohort| + #|corrupt| < 2 * q ->
  (forall v, v \in A -> signed v a) -> (forall v, v \in B -> signed v b) ->
  a = b.
Proof.
move=> once inA inB sizeA sizeB enough signedA signedB.
have [v [vA vB honest]] := common_honest_member inA inB sizeA sizeB enough.
by apply: (once v) => //; [apply: signedA | apply: signedB].
Qed.

End Quorums.

Section Holders.

Variable Client : finType.
Variables holders corrupt : {set Client}.

(* Never both secrets of one client: an honest holder releases a share of one of them. With 2 t > holders + the corrupt
   among them, whoever has t shares of each has two of one honest holder. *)
Theorem never_both_secrets t (released_self released_key : {set Client}) :
  released_self \subset holders -> released_key \subset holders ->
  (forall v, v \notin corrupt -> ~~ ((v \in released_self) && (v \in released_key))) ->
  #|holders| + #|corrupt :&: holders| < 2 * t ->
  ~~ ((t <= #|released_self|) && (t <= #|released_key|)).
Proof.
move=> inS inK once enough; apply/negP => /andP [sizeS sizeK].
have [v [vS vK honest]] := common_honest_member inS inK sizeS sizeK enough.
case: (boolP (v \in corrupt)) => [bad | good].
  by move: honest; rewrite inE bad /= (subsetP inS _ vS).
by have := once v good; rewrite vS vK.
Qed.

End Holders.

(* A set of t holders that a client was shown, and t others who release its self secret: an honest neighbour is in both
   (docs/protocol.md, "Own sharers for one client"). *)
Theorem shown_holders_meet_releasing_ones (Client : finType) (holders corrupt shown releasing : {set Client}) t :
  shown \subset holders -> releasing \subset holders -> t <= #|shown| -> t <= #|releasing| ->
  #|holders| + #|corrupt| < 2 * t ->
  exists v, [/\ v \in shown, v \in releasing & v \notin corrupt].
Proof. exact: common_honest_member. Qed.

Print Assumptions quorums_agree.
Print Assumptions never_both_secrets.
Print Assumptions shown_holders_meet_releasing_ones.
