(* Nobody is split off on the ring (docs/protocol.md, "Why a lying server learns no more than the sum", 3). *)
From mathcomp Require Import all_ssreflect all_algebra.

Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

Import GRing.Theory.

Section Ring.

Variable n : nat.
Definition place := 'I_n.+1.

Definition ahead (i : place) (steps : nat) : place := (i + inZp steps)%R.
Definition distance (i j : place) : nat := val (j - i)%R.

Arguments ahead : simpl never.
Arguments distance : simpl never.

Lemma step_add a b : @inZp n (a + b) = (inZp a + inZp b)%R.
Proof. by apply: val_inj; rewrite /= modnDm. Qed.

Lemma ahead_ahead i a b : ahead (ahead i a) b = ahead i (a + b).
Proof. by rewrite /ahead step_add addrA. Qed.

Lemma ahead_distance i j : ahead i (distance i j) = j.
Proof. by rewrite /ahead /distance valZpK addrC subrK. Qed.

Lemma distance_ahead i steps : steps < n.+1 -> distance i (ahead i steps) = steps.
Proof. by move=> small; rewrite /distance /ahead addrC addKr /= modn_small. Qed.

Lemma distance_left i j e : e <= distance i j -> distance (ahead i e) j = distance i j - e.
Proof.
move=> within; have j_ahead : j = ahead (ahead i e) (distance i j - e) by rewrite ahead_ahead subnKC ?ahead_distance.
by rewrite {1}j_ahead distance_ahead // (leq_ltn_trans (leq_subr _ _)) // ltn_ord.
Qed.

Lemma ahead_injective steps : injective (ahead^~ steps).
Proof. by move=> i j /addIr. Qed.

Lemma ahead0 i : ahead i 0 = i.
Proof. by rewrite -{2}[i]addr0; congr (_ + _)%R; apply: val_inj; rewrite /= mod0n. Qed.

(* --- the sums of the argument ---------------------------------------------------------------------------------- *)

(* h places before a client, and h after it, hold its shares. *)
Variable h : nat.
Definition window (i : place) : {set place} := [set ahead i (e : 'I_h) | e in 'I_h].
Definition after (i : place) : {set place} := window (ahead i 1).
Definition before (i : place) : {set place} := [set j | i \in after j].
Definition holders (i : place) : {set place} := i |: (after i :|: before i).

Lemma card_window i : #|window i| <= h.
Proof. by rewrite -[X in _ <= X]card_ord; apply: leq_imset_card. Qed.

Lemma in_after i j : reflect (exists2 e, e < h & j = ahead i e.+1) (j \in after i).
Proof.
apply: (iffP imsetP) => [[e _ ->] | [e below ->]]; first by exists e => //; rewrite ahead_ahead add1n.
by exists (Ordinal below); rewrite // ahead_ahead add1n.
Qed.

(* The places before a client are a window, too. *)
Lemma before_is_window i : exists j, before i = window j.
Proof.
exists (i - inZp h)%R; apply/setP => j; rewrite inE; apply/in_after/imsetP => [[e below same] | [[e below] _ ->]].
  have h_e : h - e.+1 < h by rewrite ltn_subrL /=; case: h below.
  exists (Ordinal h_e) => //=; apply: (@ahead_injective e.+1); rewrite -same /ahead -addrA -step_add subnK //.
  by rewrite subrK.
have h_e : h - e.+1 < h by rewrite ltn_subrL /=; case: h below.
exists (h - e.+1) => //=; rewrite ahead_ahead (_ : e + (h - e.+1).+1 = h); first by rewrite /ahead subrK.
by rewrite -addSnnS subnKC.
Qed.

Lemma card_before i : #|before i| <= h.
Proof. by have [j ->] := before_is_window i; apply: card_window. Qed.

(* G are the honest survivors, S the part of them whose sum would show, C the corrupt clients. *)
Variables S G C : {set place}.
Hypothesis part : S \subset G.
Variables (t c : nat).

(* No mask joins S to the rest of G: no two of them are neighbours. *)
Hypothesis apart : forall s g, s \in S -> g \in G :\: S -> g \notin holders s.
(* The self secret of each member of S is rebuilt: t of its holders release a share of it, survivors or corrupt ones. *)
Hypothesis rebuilt : forall s, s \in S -> t <= #|holders s :&: (G :|: C)|.
(* No two windows without a common place hold more than c corrupt clients each. *)
Hypothesis spread : forall i j, [disjoint window i & window j] -> (#|C :&: window i| <= c) || (#|C :&: window j| <= c).

(* From a member of A to the nearest member of B ahead of it: nobody of G stands between them. *)
Lemma nearest (A B : {set place}) a0 b0 : a0 \in A -> b0 \in B -> A :|: B = G -> [disjoint A & B] ->
  exists a b, [/\ a \in A, b \in B & forall e, 0 < e < distance a b -> ahead a e \notin G].
Proof.
move=> inA inB all separate.
pose length (ab : place * place) := distance ab.1 ab.2.
have some : (a0, b0) \in setX A B by rewrite in_setX inA inB.
have [[a b] inside least_of] := arg_minnP length some.
have least x : x \in setX A B -> length (a, b) <= length x by apply: least_of.
have : (a, b) \in setX A B by [].
rewrite in_setX => /andP [aA bB]; exists a, b; split=> // e /andP [positive less].
apply/negP; rewrite -all inE => /orP [eA | eB].
  have : length (a, b) <= length (ahead a e, b) by apply: least; rewrite in_setX; apply/andP.
  rewrite /length distance_left ?(ltnW less) // leqNgt ltn_subrL positive.
  by rewrite (leq_ltn_trans _ less).
have : length (a, b) <= length (a, ahead a e) by apply: least; rewrite in_setX; apply/andP.
rewrite /length distance_ahead; first by rewrite leqNgt less.
by apply: (ltn_trans less); apply: ltn_ord.
Qed.

Lemma nobody_after s g : s \in S -> g \in G :\: S -> (forall e, 0 < e < distance s g -> ahead s e \notin G) ->
  h < distance s g.
Proof.
move=> inS inG none; rewrite ltnNge; apply/negP => near; have := apart inS inG; rewrite !inE negb_or => /andP [other].
rewrite negb_or => /andP [/in_after [] ]; exists (distance s g).-1.
  by rewrite prednK // lt0n; apply: contra other => /eqP zero; rewrite -(ahead_distance s g) zero ahead0.
by rewrite prednK ?ahead_distance // lt0n; apply: contra other => /eqP zero; rewrite -(ahead_distance s g) zero ahead0.
Qed.

Lemma nobody_before s g : s \in S -> g \in G :\: S -> (forall e, 0 < e < distance g s -> ahead g e \notin G) ->
  h < distance g s.
Proof.
move=> inS inG none; rewrite ltnNge; apply/negP => near; have := apart inS inG; rewrite !inE !negb_or => /and3P [other _].
have positive : 0 < distance g s.
  by rewrite lt0n; apply: contra other => /eqP zero; rewrite -(ahead_distance g s) zero ahead0.
by case/in_after; exists (distance g s).-1; rewrite prednK // ahead_distance.
Qed.

(* One half of the holders of s releases nothing but what the corrupt ones there release. *)
Lemma half_is_lost s (half other : {set place}) : s \in S -> holders s = s |: (half :|: other) ->
  [disjoint half & G] -> #|other| <= h -> t <= h + 1 + #|C :&: half|.
Proof.
move=> inS parts empty few; apply: (leq_trans (rebuilt inS)); rewrite parts.
apply: (@leq_trans #|(s |: other) :|: (C :&: half)|).
  apply: subset_leq_card; apply/subsetP => v; rewrite !inE => /andP [/or3P [-> | inHalf | ->] releases]; rewrite ?orbT //.
  by move: releases; rewrite inHalf (disjointFr empty inHalf) /= => ->; rewrite orbT.
apply: (leq_trans (leq_card_setU _ _)); rewrite leq_add2r [h + 1]addnC.
by apply: (leq_trans (leq_card_setU _ _)); rewrite cards1 leq_add2l.
Qed.

Theorem nobody_is_split_off : S != set0 -> h + 1 + c < t -> S = G.
Proof.
move=> /set0Pn [s0 s0S] enough; apply/eqP; rewrite eqEsubset part /=; apply/negPn/negP => /subsetPn [g0 g0G g0S].
have g0R : g0 \in G :\: S by rewrite inE g0G g0S.
have all : S :|: (G :\: S) = G by rewrite setDE setUIr setUCr setIT; apply/setUidPr.
have all' : (G :\: S) :|: S = G by rewrite setUC.
have separate : [disjoint S & G :\: S] by rewrite -setI_eq0 setDE setICA setICr setI0.
have separate' : [disjoint G :\: S & S] by rewrite disjoint_sym.
have [s1 [g1 [s1S g1R none1]]] := nearest s0S g0R all separate.
have [g2 [s2 [g2R s2S none2]]] := nearest g0R s0S all' separate'.
have far1 := nobody_after s1S g1R none1; have far2 := nobody_before s2S g2R none2.
have empty1 : [disjoint after s1 & G].
  rewrite disjoint_subset; apply/subsetP => v /in_after [e below ->]; rewrite inE.
  by apply: none1; rewrite /= (leq_ltn_trans below far1).
have short2 : distance g2 s2 < n.+1 by apply: ltn_ord.
have back v : v \in before s2 -> exists2 e, 0 < e < distance g2 s2 & v = ahead g2 e /\ distance g2 s2 - e <= h.
  rewrite inE => /in_after [e below same].
  exists (distance g2 s2 - e.+1).
    by rewrite subn_gt0 (leq_ltn_trans below far2) ltn_subrL /= (leq_ltn_trans (leq0n h) far2).
  split; last by rewrite subKn ?(leq_trans below (ltnW far2)).
  apply: (@ahead_injective e.+1); rewrite -same ahead_ahead subnK ?ahead_distance //.
  exact: leq_trans below (ltnW far2).
have empty2 : [disjoint before s2 & G].
  by rewrite disjoint_subset; apply/subsetP => v /back [e between [-> _]]; rewrite inE; apply: none2.
have [i before_i] := before_is_window s2.
have no_common : [disjoint after s1 & before s2].
  rewrite disjoint_subset; apply/subsetP => v in1; rewrite inE; apply/negP => in2.
  have [a a_below va] := in_after _ _ in1; have [e /andP [e_pos e_below] [ve _]] := back _ in2.
  have a_near : a.+1 < distance s1 g1 by apply: leq_ltn_trans a_below far1.
  case: (ltngtP a.+1 e) => [less | more | same].
  - have step : s1 = ahead g2 (e - a.+1).
      by apply: (@ahead_injective a.+1); rewrite -va ve ahead_ahead subnK // ltnW.
    have := none2 (e - a.+1); rewrite -step subn_gt0 less /= (leq_ltn_trans (leq_subr _ _) e_below) => /(_ isT).
    by rewrite (subsetP part _ s1S).
  - have step : g2 = ahead s1 (a.+1 - e).
      by apply: (@ahead_injective e); rewrite -ve va ahead_ahead subnK // ltnW.
    have := none1 (a.+1 - e); rewrite -step subn_gt0 more /= (leq_ltn_trans (leq_subr _ _) a_near) => /(_ isT).
    by move: g2R; rewrite inE => /andP [_ ->].
  have step : s1 = g2 by apply: (@ahead_injective e); rewrite -ve va same.
  by move: g2R; rewrite -step inE s1S.
have half1 : t <= h + 1 + #|C :&: after s1| by apply: (half_is_lost s1S (erefl _) empty1 (card_before _)).
have half2 : t <= h + 1 + #|C :&: before s2|.
  apply: (half_is_lost s2S _ empty2 (card_window (ahead s2 1))).
  by rewrite /holders [after s2 :|: _]setUC.
rewrite before_i in half2 no_common.
case/orP: (spread no_common) => few; move: enough; rewrite ltnNge => /negP; apply.
  by apply: (leq_trans half1); rewrite leq_add2l.
by apply: (leq_trans half2); rewrite leq_add2l.
Qed.

End Ring.

Print Assumptions nobody_is_split_off.
