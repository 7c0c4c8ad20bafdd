(* The thresholds of the graphs in graph_table.v are exactly those of the bounds in docs/protocol.md. *)
From Coq Require Import NArith.
From mathcomp Require Import all_ssreflect.
From fedcore Require Import graph_row graph_table.

Lemma each_is_justified (some : graph) (rows : seq graph) :
  all check rows -> forall n, n < size rows -> justified (nth some rows n).
Proof. by move=> /all_nthP checked n inside; apply: checked_is_justified; apply: checked. Qed.

Lemma all_checked : all check graphs = true.
Proof. by vm_cast_no_check (erefl true). Qed.

Theorem thresholds_are_exact n : n < size graphs -> justified (nth (Graph 0 0 0 0 0 0) graphs n).
Proof. exact: (each_is_justified _ _ all_checked). Qed.

Print Assumptions thresholds_are_exact.
