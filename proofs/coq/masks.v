(* What is left of masked vectors: on any graph, whoever drops out, the sum of the survivors' vectors. *)
From mathcomp Require Import all_ssreflect all_algebra.

Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

Import GRing.Theory.
Local Open Scope ring_scope.

Section Cancellation.

(* Vectors modulo 2^64, or any other commutative group. *)
Variable V : zmodType.
Variable Client : finType.
(* Ids are distinct numbers. *)
Variable id : Client -> nat.
Hypothesis id_injective : injective id.
(* The graph: any symmetric relation. *)
Variable neighbours : rel Client.
Hypothesis neighbours_symmetric : symmetric neighbours.
Variables sharers survivors : {set Client}.
Hypothesis survivors_share : survivors \subset sharers.
(* vector: what a client adds up; self: its self mask; pair: the mask that two clients share. *)
Variables (vector self : Client -> V) (pair : Client -> Client -> V).
Hypothesis pair_symmetric : forall u v, pair u v = pair v u.

(* The mask that v adds for u: plus if its own id is the lower one. *)
Definition signed (v u : Client) : V := if (id v < id u)%N then pair v u else - pair v u.

Definition masked (v : Client) : V := vector v + self v + \sum_(u in sharers | neighbours v u && (u != v)) signed v u.

(* What the server adds for a sharer v that did not survive: v's own masks with the survivors. *)
Definition left_behind (v : Client) : V := \sum_(u in survivors | neighbours v u && (u != v)) signed v u.

Definition unmasked : V :=
  \sum_(v in survivors) masked v - \sum_(v in survivors) self v + \sum_(v in sharers :\: survivors) left_behind v.

Lemma signed_opposite u v : u != v -> signed u v = - signed v u.
Proof.
move=> distinct; rewrite /signed (pair_symmetric u v).
case: (ltngtP (id u) (id v)) => // [_ | same]; first by rewrite opprK.
by move: distinct; rewrite (id_injective same) eqxx.
Qed.

(* Masks between the members of one set cancel. *)
Lemma pairs_cancel (S : {set Client}) : \sum_(v in S) \sum_(u in S | neighbours v u && (u != v)) signed v u = 0.
Proof.
pose half := \sum_(v in S) \sum_(u in S | neighbours v u && (id v < id u)%N) pair v u.
have apart v : \sum_(u in S | neighbours v u && (u != v)) signed v u =
    \sum_(u in S | neighbours v u && (id v < id u)%N) pair v u
    - \sum_(u in S | neighbours v u && (id u < id v)%N) pair v u.
  rewrite (bigID (fun u => (id v < id u)%N)) /=; congr (_ + _).
    apply: eq_big => [u | u /andP [_ lower]]; last by rewrite /signed lower.
    case: (u \in S) => //=; case: (neighbours v u) => //=.
    case: (ltnP (id v) (id u)) => [lower | _]; last by rewrite andbF.
    by rewrite andbT; apply/eqP => same; move: lower; rewrite same ltnn.
  rewrite -sumrN; apply: eq_big => [u | u /andP [_ /negbTE higher]]; last by rewrite /signed higher.
  case: (u \in S) => //=; case: (neighbours v u) => //=; rewrite -leqNgt leq_eqVlt.
  case: (ltngtP (id u) (id v)) => [lower | _ | same]; rewrite ?andbF ?andbT //=.
  - by apply/eqP => equal; move: lower; rewrite equal ltnn.
  - by rewrite (id_injective same) eqxx.
rewrite (eq_bigr _ (fun v _ => apart v)) big_split /= sumrN.
suff -> : \sum_(v in S) \sum_(u in S | neighbours v u && (id u < id v)%N) pair v u = half by rewrite subrr.
rewrite (exchange_big_dep (fun u => u \in S)) /= => [|v u _ /andP []//].
apply: eq_bigr => v inS; apply: eq_big => [u | u _]; last by rewrite pair_symmetric.
by rewrite inS /= neighbours_symmetric.
Qed.

(* Masks between two sets without a common member. *)
Lemma pairs_between (A B : {set Client}) : [disjoint A & B] ->
  \sum_(v in A) \sum_(u in B | neighbours v u && (u != v)) signed v u
  + \sum_(v in B) \sum_(u in A | neighbours v u && (u != v)) signed v u = 0.
Proof.
move=> apart; rewrite [X in _ + X](exchange_big_dep (fun u => u \in A)) /= => [|v u _ /andP []//].
rewrite -big_split big1 //= => v inA; apply/eqP; rewrite addr_eq0 -sumrN; apply/eqP.
apply: eq_big => [u | u /andP [_ /andP [_ distinct]]]; last by rewrite signed_opposite // eq_sym.
by rewrite inA /= neighbours_symmetric [u == v]eq_sym.
Qed.

Theorem sum_of_survivors : unmasked = \sum_(v in survivors) vector v.
Proof.
rewrite /unmasked /masked !big_split /=.
have aside (a s m l : V) : m + l = 0 -> a + s + m - s + l = a.
  by move=> none; rewrite [a + s + m]addrAC addrK -addrA none addr0.
apply: aside.
pose lost := sharers :\: survivors.
have apart : [disjoint survivors & lost] by rewrite -setI_eq0 /lost setIDA setDIl setDv set0I.
have cut v : \sum_(u in sharers | neighbours v u && (u != v)) signed v u =
    \sum_(u in survivors | neighbours v u && (u != v)) signed v u
    + \sum_(u in lost | neighbours v u && (u != v)) signed v u.
  rewrite (bigID (fun u => u \in survivors)) /=; congr (_ + _); apply: eq_bigl => u; rewrite /lost ?inE.
    by case inU3 : (u \in survivors); rewrite ?andbF ?andbT //= (subsetP survivors_share _ inU3).
  by rewrite -andbA [in LHS]andbC -andbA andbC; case: (u \in sharers); case: (u \in survivors); rewrite ?andbF ?andbT.
rewrite (eq_bigr _ (fun v _ => cut v)) big_split /= pairs_cancel add0r.
exact: pairs_between.
Qed.

End Cancellation.

Print Assumptions sum_of_survivors.
