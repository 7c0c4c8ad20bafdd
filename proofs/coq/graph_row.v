(* A graph that fedcore chooses, and what its threshold stands on. *)
From Coq Require Import NArith.
From mathcomp Require Import all_ssreflect.
From fedcore Require Import hypergeometric.

Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

(* population: the fewest clients on the ring; corrupt: how many of them may collude; around: the most corrupt ones among anybody's
   neighbours; both: the most in each of two windows of degree / 2 places. *)
Record graph := Graph {population : nat; corrupt : nat; degree : nat; around : nat; both_windows : nat; threshold : nat}.

Definition justified (g : graph) : Prop :=
  let window := degree g %/ 2 in
  [/\ rarely_above 128 (population g) (corrupt g) (degree g) (around g),
      0 < around g -> ~ rarely_above 128 (population g) (corrupt g) (degree g) (around g).-1,
      rarely_in_both 127 (population g) (corrupt g) window (both_windows g).+1,
      0 < both_windows g -> ~ rarely_in_both 127 (population g) (corrupt g) window (both_windows g)
    & threshold g = maxn (window + 2 + both_windows g) ((degree g + 1 + around g) %/ 2 + 1)].

Definition fits (pair : N * N) : bool := N.leb pair.1 pair.2.

Definition check (g : graph) : bool :=
  let p := N.of_nat (population g) in let c := N.of_nat (corrupt g) in let window := degree g %/ 2 in
  [&& fits (tail p c (degree g) (around g) 128),
      (around g == 0) || ~~ fits (tail p c (degree g) (around g).-1 128),
      fits (both p (corrupt g) window (both_windows g).+1 127),
      (both_windows g == 0) || ~~ fits (both p (corrupt g) window (both_windows g) 127)
    & threshold g == maxn (window + 2 + both_windows g) ((degree g + 1 + around g) %/ 2 + 1)].

Theorem checked_is_justified g : check g -> justified g.
Proof.
case: g => p c k a m t; rewrite /check /justified /= => /and5P [above below rarely often /eqP ->]; split=> //.
- by rewrite -{1}(Nat2N.id p) -{1}(Nat2N.id c); apply: rarely_above_by_computing.
- move=> some; case/orP: below => [/eqP none | /negbTE over]; first by move: some; rewrite none.
  by rewrite -{1}(Nat2N.id p) -{1}(Nat2N.id c); apply: not_rarely_above_by_computing.
- by rewrite -{1}(Nat2N.id p); apply: rarely_in_both_by_computing.
move=> some; case/orP: often => [/eqP none | /negbTE over]; first by move: some; rewrite none.
by rewrite -{1}(Nat2N.id p); apply: not_rarely_in_both_by_computing.
Qed.
