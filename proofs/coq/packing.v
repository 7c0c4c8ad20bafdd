(* Packed fields: a word of the sum holds the sums of the fields, since none carries into the next. *)
From mathcomp Require Import all_ssreflect.

Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

Section Packing.

(* m fields of b bits in a word of 64. *)
Variables b m : nat.
Hypothesis fits : m * b <= 64.

Definition pack (field : nat -> nat) : nat := \sum_(j < m) field j * 2 ^ (b * j).
Definition field_of (word j : nat) : nat := word %/ 2 ^ (b * j) %% 2 ^ b.

Lemma partial_sum_below (field : nat -> nat) k : (forall j, j < k -> field j < 2 ^ b) ->
  \sum_(j < k) field j * 2 ^ (b * j) < 2 ^ (b * k).
Proof.
elim: k => [|k below] small; first by rewrite big_ord0 muln0.
rewrite big_ord_recr /= mulnSr expnD mulnC.
have first : \sum_(j < k) field j * 2 ^ (b * j) < 2 ^ (b * k) by apply: below => j /leqW; apply: small.
apply: (@leq_trans (2 ^ (b * k) + 2 ^ (b * k) * field k)); first by rewrite ltn_add2r.
by rewrite -mulnS leq_mul2l small ?orbT.
Qed.

(* A word never reaches 2^64, so a sum modulo 2^64 is the sum. *)
Lemma word_below (field : nat -> nat) : (forall j, j < m -> field j < 2 ^ b) -> pack field < 2 ^ 64.
Proof. by move=> small; apply: (leq_trans (partial_sum_below small)); rewrite leq_exp2l // mulnC. Qed.

Lemma fields_come_back (field : nat -> nat) j : (forall i, i < m -> field i < 2 ^ b) -> j < m ->
  field_of (pack field) j = field j.
Proof.
move=> small inside; rewrite /field_of /pack.
rewrite -(big_mkord xpredT (fun i => field i * 2 ^ (b * i))) (@big_cat_nat _ _ _ j) //=; last exact: ltnW.
rewrite (@big_ltn _ _ _ j) //=.
set low := \sum_(0 <= i < j) _; set high := \sum_(j.+1 <= i < m) _.
have low_below : low < 2 ^ (b * j).
  by rewrite /low big_mkord; apply: partial_sum_below => i before; apply: small; apply: ltn_trans before inside.
have [rest highE] : exists rest, high = rest * 2 ^ b * 2 ^ (b * j).
  exists (\sum_(j.+1 <= i < m) field i * 2 ^ (b * (i - j.+1))).
  rewrite /high !big_distrl /= big_seq [RHS]big_seq; apply: eq_bigr => i; rewrite mem_index_iota => /andP [after _].
  have place : b * i = b * (i - j.+1) + b + b * j by rewrite -{1}(subnK after) mulnDr mulnS addnA.
  by rewrite {1}place !expnD !mulnA.
rewrite highE -mulnDl addnC divnMDl ?expn_gt0 // divn_small // addn0 addnC modnMDl modn_small //.
exact: small.
Qed.

(* n clients, each with fields of q bits, b = q + ceil(log2 n). *)
Variables (n q : nat).
Hypothesis wide : n <= 2 ^ (b - q).
Hypothesis narrower : q <= b.

Theorem sums_never_carry (field : 'I_n -> nat -> nat) : (forall i j, field i j < 2 ^ q) ->
  (\sum_i pack (field i)) %% 2 ^ 64 = pack (fun j => \sum_i field i j)
  /\ forall j, j < m -> field_of ((\sum_i pack (field i)) %% 2 ^ 64) j = \sum_i field i j.
Proof.
move=> small.
have total j : \sum_i field i j < 2 ^ b.
  apply: (@leq_ltn_trans (n * (2 ^ q).-1)).
    rewrite -[X in X * _]card_ord -sum_nat_const; apply: leq_sum => i _.
    by rewrite -ltnS prednK ?expn_gt0.
  case: (posnP n) => [-> | some]; first by rewrite expn_gt0.
  apply: (@leq_trans (n * 2 ^ q)); first by rewrite ltn_mul2l some /= -ltnS prednK ?expn_gt0 // ltnS leqnn.
  by rewrite -(subnK narrower) expnD leq_mul2r wide orbT.
have added : \sum_i pack (field i) = pack (fun j => \sum_i field i j).
  by rewrite /pack exchange_big /=; apply: eq_bigr => j _; rewrite big_distrl.
have word : (\sum_i pack (field i)) %% 2 ^ 64 = pack (fun j => \sum_i field i j).
  by rewrite added modn_small // word_below // => j _; apply: total.
by split=> // j inside; rewrite word fields_come_back // => i _; apply: total.
Qed.

End Packing.

(* The codec's width, q + ceil(log2 n), is wide enough. *)
Theorem width_suffices n q : 0 < n -> n <= 2 ^ (q + up_log 2 n - q).
Proof. by move=> some; rewrite addKn; apply: up_logP. Qed.

Print Assumptions sums_never_carry.
Print Assumptions width_suffices.
