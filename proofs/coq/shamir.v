(* Shamir's scheme over a field: t good shares give the secret, and t - 1 tell nothing of it. *)
From mathcomp Require Import all_ssreflect all_algebra.

Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

Import GRing.Theory.
Local Open Scope ring_scope.

Section Sharing.

Variable F : fieldType.

(* Polynomials of degree below t that agree on t points or more are the same. *)
Theorem shares_suffice t (p q : {poly F}) (points : seq F) :
  (size p <= t)%N -> (size q <= t)%N -> uniq points -> (t <= size points)%N ->
  {in points, forall x, p.[x] = q.[x]} -> p = q.
Proof.
move=> small_p small_q distinct enough agree; apply/eqP; rewrite -subr_eq0.
apply: contraTT (leqnn t) => differ; rewrite -ltnNge.
have : (size points < size (p - q)%R)%N.
  apply: max_poly_roots => //; apply/allP => x inside.
  by rewrite /root hornerD hornerN agree // subrr.
move=> more; apply: (leq_ltn_trans enough); apply: (leq_trans more).
by apply: (leq_trans (size_add _ _)); rewrite size_opp geq_max small_p small_q.
Qed.

(* Through t points with distinct places goes a polynomial of degree below t. *)
Lemma interpolation t (place : 'I_t -> F) (value : 'I_t -> F) : injective place ->
  exists2 p : {poly F}, (size p <= t)%N & forall i, p.[place i] = value i.
Proof.
move=> distinct.
pose basis i := \prod_(j | j != i) ((place i - place j)^-1 *: ('X - (place j)%:P)).
have size_basis i : (size (basis i) <= t)%N.
  apply: (leq_trans (size_prod_leq _ _)).
  have bound : (\sum_(j | j != i) size ((place i - place j)^-1 *: ('X - (place j)%:P)) <= \sum_(j < t | j != i) 2)%N.
    by apply: leq_sum => j _; apply: (leq_trans (size_scale_leq _ _)); rewrite size_XsubC.
  apply: (@leq_trans ((\sum_(j < t | j != i) 2).+1 - #|[pred j | j != i]|)%N).
    by apply: leq_sub2r; rewrite ltnS.
  rewrite sum_nat_const muln2 -addnn -addSn addnK cardC1 card_ord.
  by case: t i {place value distinct basis bound} => // [[]].
have at_basis i j : (basis i).[place j] = (i == j)%:R.
  rewrite horner_prod; case: eqP => [<- | /eqP other].
    apply: big1 => k apart; rewrite hornerZ hornerXsubC mulVf // subr_eq0.
    by apply: contraNneq apart => /distinct ->.
  rewrite (bigD1 j) /= 1?eq_sym //; by rewrite hornerZ hornerXsubC subrr mulr0 mul0r.
exists (\sum_i value i *: basis i).
  by apply: (leq_trans (size_sum _ _ _)); apply/bigmax_leqP => i _; apply: (leq_trans (size_scale_leq _ _)).
move=> j; rewrite horner_sum (bigD1 j) //= hornerZ at_basis eqxx mulr1 big1 ?addr0 // => i apart.
by rewrite hornerZ at_basis (negbTE apart) mulr0.
Qed.

(* Whatever t - 1 holders see, each secret fits, by one polynomial: with uniform coefficients they learn nothing. *)
Theorem fewer_tell_nothing t (place value : 'I_t -> F) (secret : F) :
  injective place -> (forall i, place i != 0) ->
  exists! p : {poly F}, [/\ (size p <= t.+1)%N, p.[0] = secret & forall i, p.[place i] = value i].
Proof.
move=> distinct nonzero.
pose places (i : 'I_t.+1) := if unlift ord0 i is Some j then place j else 0.
pose values (i : 'I_t.+1) := if unlift ord0 i is Some j then value j else secret.
have places_distinct : injective places.
  move=> i j; rewrite /places; case: unliftP => [k -> | ->]; case: unliftP => [l -> | ->] //.
  - by move=> /distinct ->.
  - by move=> zero; move: (nonzero k); rewrite zero eqxx.
  - by move=> zero; move: (nonzero l); rewrite -zero eqxx.
have [p small fit] := interpolation values places_distinct.
have at_zero : p.[0] = secret by have := fit ord0; rewrite /places /values unlift_none.
have at_place i : p.[place i] = value i by have := fit (lift ord0 i); rewrite /places /values liftK.
exists p; split=> // q [small_q zero_q fit_q].
apply: (@shares_suffice t.+1 _ _ [seq places i | i <- enum 'I_t.+1]) => //.
- by rewrite map_inj_uniq // enum_uniq.
- by rewrite size_map size_enum_ord.
move=> x /mapP [i _ ->]; rewrite fit /places /values.
by case: unliftP => [j _ | _]; rewrite ?fit_q ?zero_q.
Qed.

End Sharing.

Print Assumptions shares_suffice.
Print Assumptions fewer_tell_nothing.
