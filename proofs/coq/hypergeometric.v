(* Tails of hypergeometric distributions in whole numbers: what `fedcore.secagg.sizing` computes in floating point. *)
From Coq Require Import PeanoNat NArith Lia.
From mathcomp Require Import all_ssreflect.

Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

(* --- the statements -------------------------------------------------------------------------------------------- *)

(* Of `drawn` out of `population`, `marked` of them marked: the draws with more than `most` marked ones. *)
Definition draws_above (population marked drawn most : nat) : nat :=
  \sum_(most.+1 <= x < drawn.+1) 'C(marked, x) * 'C(population - marked, drawn - x).

(* P[more than `most`] <= 2^-bits / population, times 2^bits * population * all draws. *)
Definition rarely_above bits population marked drawn most : Prop :=
  draws_above population marked drawn most * population * 2 ^ bits <= 'C(population, drawn).

(* The ways to mark `marked` out of `population` so that two given groups of `window` have `least` or more each. *)
Definition marks_in_both (population marked window least : nat) : nat :=
  \sum_(least <= f < window.+1) \sum_(least <= g < window.+1)
    'C(window, f) * ('C(window, g) * (if f + g <= marked then 'C(population - 2 * window, marked - (f + g)) else 0)).

(* P[both groups have `least` or more] <= 2^-bits / population^2. *)
Definition rarely_in_both bits population marked window least : Prop :=
  marks_in_both population marked window least * (population * population) * 2 ^ bits <= 'C(population, marked).

(* --- in binary numbers ----------------------------------------------------------------------------------------- *)

Local Open Scope N_scope.

(* 'C(n, 0), 'C(n, 1), .. 'C(n, k), each from the one before. *)
Fixpoint row_from (n : N) (m : N) (value : N) (steps : nat) : seq N :=
  value :: if steps is s.+1 then row_from n (N.succ m) (value * (n - m) / N.succ m) s else [::].

Definition row (n : N) (k : nat) : seq N := row_from n 0 1 k.

Local Close Scope N_scope.

Lemma row_fromE n m value steps i : N.to_nat value = 'C(N.to_nat n, N.to_nat m) -> i <= steps ->
  N.to_nat (nth 0%num (row_from n m value steps) i) = 'C(N.to_nat n, N.to_nat m + i).
Proof.
elim: steps m value i => [|s rest] m value [|i] start //=; rewrite ?addn0 // => inside.
rewrite rest ?N2Nat.inj_succ ?addSnnS // => {rest inside}.
rewrite N2Nat.inj_div N2Nat.inj_mul N2Nat.inj_sub N2Nat.inj_succ start.
set a := N.to_nat n; set b := N.to_nat m.
have -> : ('C(a, b) * (a - b) = 'C(a, b.+1) * b.+1)%coq_nat by rewrite !multE [RHS]mulnC mul_bin_left mulnC.
by rewrite Nat.div_mul.
Qed.

Lemma rowE n k i : i <= k -> N.to_nat (nth 0%num (row n k) i) = 'C(N.to_nat n, i).
Proof. by move=> inside; rewrite row_fromE // bin0. Qed.

Fixpoint total (terms : seq N) : N := if terms is t :: rest then N.add t (total rest) else 0%num.

Lemma totalE terms : N.to_nat (total terms) = \sum_(t <- terms) N.to_nat t.
Proof. by elim: terms => [|t rest step]; rewrite ?big_nil // big_cons /= N2Nat.inj_add step. Qed.

Lemma total_map (f : nat -> N) (g : nat -> nat) (places : seq nat) : {in places, forall x, N.to_nat (f x) = g x} ->
  N.to_nat (total [seq f x | x <- places]) = \sum_(x <- places) g x.
Proof. by move=> same; rewrite totalE big_map; apply: eq_big_seq. Qed.

Definition powers (bits : nat) : N := N.pow 2 (N.of_nat bits).

Lemma powersE bits : N.to_nat (powers bits) = 2 ^ bits.
Proof.
rewrite /powers; elim: bits => [|b step] //.
by rewrite Nat2N.inj_succ N.pow_succ_r' N2Nat.inj_mul step expnS.
Qed.

Lemma N_leP a b : reflect (N.to_nat a <= N.to_nat b) (N.leb a b).
Proof. by apply: (iffP idP) => [/N.leb_le le | /leP le]; [apply/leP; lia | apply/N.leb_le; lia]. Qed.

Definition draws_above_N (population marked drawn : N) (k most : nat) : N :=
  let hits := row marked k in let misses := row (N.sub population marked) k in
  total [seq N.mul (nth 0%num hits x) (nth 0%num misses (k - x)) | x <- index_iota most.+1 k.+1].

Definition tail (population marked : N) (drawn most bits : nat) : N * N :=
  let k := drawn in
  (N.mul (N.mul (draws_above_N population marked (N.of_nat k) k most) population) (powers bits), nth 0%num (row population k) k).

Lemma tailE population marked drawn most bits :
  N.to_nat (tail population marked drawn most bits).1 =
    draws_above (N.to_nat population) (N.to_nat marked) drawn most * N.to_nat population * 2 ^ bits
  /\ N.to_nat (tail population marked drawn most bits).2 = 'C(N.to_nat population, drawn).
Proof.
rewrite /tail !N2Nat.inj_mul powersE rowE //; split=> //; congr (_ * _ * _).
apply: total_map => x; rewrite mem_index_iota => /andP [_ below].
by rewrite N2Nat.inj_mul !rowE ?leq_subr // N2Nat.inj_sub.
Qed.

Theorem rarely_above_by_computing population marked drawn most bits :
  N.leb (tail population marked drawn most bits).1 (tail population marked drawn most bits).2 ->
  rarely_above bits (N.to_nat population) (N.to_nat marked) drawn most.
Proof. by move=> /N_leP; have [-> ->] := tailE population marked drawn most bits. Qed.

Theorem not_rarely_above_by_computing population marked drawn most bits :
  N.leb (tail population marked drawn most bits).1 (tail population marked drawn most bits).2 = false ->
  ~ rarely_above bits (N.to_nat population) (N.to_nat marked) drawn most.
Proof. by move=> over; rewrite /rarely_above; have [<- <-] := tailE population marked drawn most bits => /N_leP; rewrite over. Qed.

Definition both_N (population marked : N) (window least many : nat) : N :=
  let inside := row (N.of_nat window) window in
  let outside := row (N.sub population (N.of_nat (2 * window))) many in
  total [seq N.mul (nth 0%num inside f) (total [seq
      if f + g <= many then N.mul (nth 0%num inside g) (nth 0%num outside (many - (f + g))) else 0%num
    | g <- index_iota least window.+1]) | f <- index_iota least window.+1].

Definition both (population : N) (marked window least bits : nat) : N * N :=
  (N.mul (N.mul (both_N population (N.of_nat marked) window least marked) (N.mul population population)) (powers bits),
   nth 0%num (row population marked) marked).

Lemma bothE population marked window least bits :
  N.to_nat (both population marked window least bits).1 =
    marks_in_both (N.to_nat population) marked window least * (N.to_nat population * N.to_nat population) * 2 ^ bits
  /\ N.to_nat (both population marked window least bits).2 = 'C(N.to_nat population, marked).
Proof.
rewrite /both !N2Nat.inj_mul powersE rowE //; split=> //; congr (_ * _ * _).
apply: total_map => f; rewrite mem_index_iota => /andP [_ f_below].
rewrite N2Nat.inj_mul rowE // Nat2N.id -big_distrr /=; congr (_ * _).
apply: total_map => g; rewrite mem_index_iota => /andP [_ g_below].
case: ifP => [inside | _]; last by rewrite muln0.
by rewrite N2Nat.inj_mul !rowE ?leq_subr // N2Nat.inj_sub !Nat2N.id.
Qed.

Theorem rarely_in_both_by_computing population marked window least bits :
  N.leb (both population marked window least bits).1 (both population marked window least bits).2 ->
  rarely_in_both bits (N.to_nat population) marked window least.
Proof. by move=> /N_leP; have [-> ->] := bothE population marked window least bits. Qed.

Theorem not_rarely_in_both_by_computing population marked window least bits :
  N.leb (both population marked window least bits).1 (both population marked window least bits).2 = false ->
  ~ rarely_in_both bits (N.to_nat population) marked window least.
Proof. by move=> over; rewrite /rarely_in_both; have [<- <-] := bothE population marked window least bits => /N_leP; rewrite over. Qed.

Print Assumptions rarely_above_by_computing.
Print Assumptions not_rarely_above_by_computing.
Print Assumptions rarely_in_both_by_computing.
Print Assumptions not_rarely_in_both_by_computing.
