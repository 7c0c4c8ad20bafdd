/* Recovery: two servers that share a database and an object store, and the clients of one run with one secure exchange.

   What is on the disk is global; what a process has is indexed by the server `r` and lost when it dies. Every action is
   one atomic step and prints a line "@ SERVER ACTION ..". An action that is a transaction of the store has its name; it
   commits whole or not at all, and a process may die before it, or after it and before anybody hears of it. No clock is
   trusted: another server may take the lease at any time, and the one that had it goes on until the database refuses one
   of its writes. DISTURBANCES bounds kills, takeovers, drops and cancellations together; after the last one the run has
   to end.

   FAULT_.. plant one fault each (proofs/recovery.py says what they are). */

#define SERVERS 2
#define CLIENTS 2
#ifndef DISTURBANCES
#define DISTURBANCES 2
#endif
/* The kinds of them that there are; a search for one fault leaves out those that it does not need. */
#ifndef KILLS
#define KILLS 1
#endif
#ifndef TAKEOVERS
#define TAKEOVERS 1
#endif
#ifndef DROPS
#define DROPS 1
#endif
#ifndef CANCELS
#define CANCELS 1
#endif

/* The stages of an exchange, in order, and its two ends; it begins with FIRST. */
#define ABSENT 0
#define ADVERTISE 1
#define SHARE 2
#define INPUT 3
#define CONSISTENCY 4
#define UNMASK 5
#define DONE 6
#define FAILED 7
#ifndef FIRST
#define FIRST ADVERTISE
#endif

/* What a server knows of a client: ParticipantState. */
#define ASKED 0
#define ADMITTED 1
#define TAKEN 2
#define DROPPED 3
#define LEAVING 4
#define LEFT 5

/* How far a server is with its run. */
#define STANDBY 0
#define STARTING 1
#define OPENING 2
#define ADDING 3
#define READING 4
#define WAITING 5
#define SAVING 6
#define CLOSING 7
#define CLEANING 8
#define FINISHING 9
#define ENDING 10
#define RETURNING 11
#define ENDED 12
#define ANSWERING 13
#define REPORTING 14
#define OVER 15
#define ABANDONING 16

/* How far it is with the message of a client. */
#define IDLE 0
#define WRITING 1
#define WRITTEN 2
#define PUBLISHED 3
#define RECORDING 4
#define RECORDED 5
#define ADDED 6
#define STORED 7

/* --- on the disk: the database --- */
byte generation;                     /* the lease */
byte holder = SERVERS;
bit running, stepped, answer, finished;
byte row;                            /* the exchange's stage */
byte receipt[CLIENTS];               /* of how many of its steps a client has receipts */
byte closing[6];                     /* who had answered each stage that is closed */
byte gone;                           /* who had been given up by then */
byte folded;                         /* whose vectors are in the saved sum, */
byte saved[CLIENTS];                 /* and how often */
byte total[CLIENTS];                 /* of the exchange that has ended */
byte model[CLIENTS];                 /* of the run that has */
/* --- on the disk: objects --- */
byte vectors;

/* --- clients --- */
byte acknowledged[CLIENTS];
bit out[CLIENTS];
byte disclosed[6];                   /* what anybody was ever told of a stage's end; 0 for nothing */

/* --- in the memory of each server --- */
#define OF(r, c) ((r) * CLIENTS + (c))
byte fence[SERVERS], work[SERVERS], stage[SERVERS], answered[SERVERS], spool[SERVERS], kept[SERVERS], lock[SERVERS];
bit lost[SERVERS], fails[SERVERS];
byte known[SERVERS * CLIENTS], state[SERVERS * CLIENTS], message[SERVERS * CLIENTS], sum[SERVERS * CLIENTS];
byte counted[SERVERS * CLIENTS];

byte disturbances = DISTURBANCES;

#define BIT(c) (1 << (c))
#define HAS(set, c) (((set) >> (c)) & 1)
/* Servers are alike, so the first lease is that of server 0. */
#define FREE(r) (holder == SERVERS -> r == 0 : work[holder] == STANDBY)
#define LEADS(r) (work[r] >= WAITING && !lost[r])
#define DEPARTED(r, c) (state[OF(r, c)] >= DROPPED)
#define INCOMING(r, c) (state[OF(r, c)] == ADMITTED || state[OF(r, c)] == LEAVING)
#define READY(r, c) ((HAS(answered[r], c) || DEPARTED(r, c)) && !INCOMING(r, c) \
  && (message[OF(r, c)] == IDLE || message[OF(r, c)] == PUBLISHED))

#ifdef FAULT_NO_FENCE
#define FENCED(r) true
#else
#define FENCED(r) (fence[r] == generation)
#endif

/* A row of PARTICIPANT_TRANSITIONS. */
#define CHANGE(r, c, change, source, target) state[OF(r, c)] == source -> state[OF(r, c)] = target

inline cease(r) {
  work[r] = STANDBY; fence[r] = 0; stage[r] = ABSENT; answered[r] = 0; spool[r] = 0; kept[r] = 0; lock[r] = CLIENTS;
  lost[r] = 0; fails[r] = 0;
  i = 0;
  do
  :: i < CLIENTS -> known[OF(r, i)] = 0; state[OF(r, i)] = ASKED; message[OF(r, i)] = IDLE; sum[OF(r, i)] = 0;
     counted[OF(r, i)] = 0; i++
  :: else -> break
  od; i = 0
}

/* Every committed write of a leader: no other one has taken the lease. */
#ifdef DAMAGE
#define write(r) skip
#else
#define write(r) assert(fence[r] == generation)
#endif

inline acknowledge(c, step) {
  if :: acknowledged[c] < step -> acknowledged[c] = step :: else fi
}

/* Nobody is ever told two things about the end of a stage. */
inline disclose(s, set) {
  if :: disclosed[s] == 0 -> disclosed[s] = set :: else -> assert(disclosed[s] == set) fi
}

inline leave_out(r, c) {
  if
  :: CHANGE(r, c, DROP, ASKED, DROPPED)
  :: CHANGE(r, c, DROP, ADMITTED, LEAVING)
  :: CHANGE(r, c, DROP, TAKEN, LEFT)
  fi;
  if :: stage[r] != INPUT -> answered[r] = answered[r] & ~BIT(c) :: else fi
}

inline admit(r, c) {
  if
  :: CHANGE(r, c, ADMIT, ASKED, ADMITTED)
#ifdef FAULT_NO_DEDUPLICATION
  :: state[OF(r, c)] == TAKEN
#endif
  fi
}

inline take(r, c) {
  if
  :: CHANGE(r, c, TAKE, ADMITTED, TAKEN)
  :: CHANGE(r, c, TAKE, LEAVING, LEFT)
#ifdef FAULT_NO_DEDUPLICATION
  :: state[OF(r, c)] == TAKEN
#endif
  fi;
  answered[r] = answered[r] | BIT(c)
}

inline refuse(r, c) {
  if
  :: CHANGE(r, c, REFUSE, ADMITTED, ASKED)
  :: CHANGE(r, c, REFUSE, LEAVING, DROPPED)
#ifdef FAULT_NO_DEDUPLICATION
  :: state[OF(r, c)] == TAKEN
#endif
  fi
}

/* The sum of those whose manifests have receipts: the saved one, and the vectors that are not in it. */
inline restore_sum(r, set) {
  assert((folded & ~(set)) == 0);
  i = 0;
  do
  :: i < CLIENTS ->
     if
     :: HAS(folded, i) -> sum[OF(r, i)] = saved[i]
     :: else
     fi;
#ifdef FAULT_ADDED_AGAIN
     if :: HAS(set, i) && HAS(vectors, i) -> sum[OF(r, i)]++ :: else fi;
#endif
#ifndef FAULT_VECTORS_NOT_READ
     if
     :: HAS(set, i) && !HAS(folded, i) ->
        assert(HAS(vectors, i));     /* it was acknowledged, and is gone */
#ifndef FAULT_ADDED_AGAIN
        sum[OF(r, i)]++
#endif
     :: else
     fi;
#endif
     i++
  :: else -> break
  od;
  i = 0; kept[r] = folded
}

/* What a server knows that reads what another one, or its own earlier process, has written. */
inline restore(r) {
  stage[r] = row;
  i = 0;
  do
  :: i < CLIENTS ->
     known[OF(r, i)] = receipt[i];
     if
     :: HAS(gone, i) && HAS(closing[INPUT], i) -> state[OF(r, i)] = LEFT
     :: HAS(gone, i) && !HAS(closing[INPUT], i) -> state[OF(r, i)] = DROPPED
     :: !HAS(gone, i) && row >= INPUT && receipt[i] >= INPUT -> state[OF(r, i)] = TAKEN
     :: else
     fi;
     if :: !HAS(gone, i) && receipt[i] >= row -> answered[r] = answered[r] | BIT(i) :: else fi;
     i++
  :: else -> break
  od;
  i = 0;
  if
  :: row == INPUT -> restore_sum(r, answered[r])
  :: row > INPUT -> restore_sum(r, closing[INPUT]); vectors = 0
  :: else
  fi;
  if :: row > ADVERTISE && FIRST <= ADVERTISE -> disclose(ADVERTISE, closing[ADVERTISE]) :: else fi;
  if :: row > SHARE && FIRST <= SHARE -> disclose(SHARE, closing[SHARE]) :: else fi;
  if :: row > INPUT -> disclose(INPUT, closing[INPUT]) :: else fi;
  if :: row > CONSISTENCY -> disclose(CONSISTENCY, closing[CONSISTENCY]) :: else fi
}

inline count_total(r) {
  i = 0;
  do :: i < CLIENTS -> counted[OF(r, i)] = total[i]; i++ :: else -> break od;
  i = 0
}

/* What the end of an exchange promises: each survivor's update once, nobody else's, and all that were acknowledged. */
inline check_total() {
  i = 0;
  do
  :: i < CLIENTS ->
     assert(total[i] <= 1);
     assert(total[i] == HAS(closing[INPUT], i));
     assert(acknowledged[i] < INPUT || total[i] == 1);
     i++
  :: else -> break
  od;
  i = 0
}

inline set_total(r) {
  i = 0;
  do
  :: i < CLIENTS -> total[i] = (fails[r] -> 0 : sum[OF(r, i)]); i++
  :: else -> break
  od;
  i = 0
}

/* What one client can do at a server, and what that then does with it. */
#define CLIENT(r, c) \
:: d_step { LEADS(r) && !finished && acknowledged[c] < UNMASK && known[OF(r, c)] > acknowledged[c] && !out[c] REPEATED -> \
     printf("@ %d repeat %d %d\n", r, acknowledged[c] + 1, c); acknowledge(c, acknowledged[c] + 1) } \
:: d_step { LEADS(r) && !finished && !out[c] && acknowledged[c] < UNMASK && known[OF(r, c)] <= acknowledged[c] \
     && (stage[r] > acknowledged[c] + 1 || DEPARTED(r, c)) && message[OF(r, c)] == IDLE -> \
     printf("@ %d stale %d\n", r, c); out[c] = 1 } \
:: d_step { LEADS(r) && work[r] == WAITING && !out[c] && stage[r] != INPUT && stage[r] == acknowledged[c] + 1 \
     && known[OF(r, c)] < stage[r] && !DEPARTED(r, c) && message[OF(r, c)] == IDLE -> \
     printf("@ %d send %d %d\n", r, stage[r], c); message[OF(r, c)] = WRITING } \
:: d_step { message[OF(r, c)] == WRITING && FENCED(r) -> write(r); \
     printf("@ %d add_receipt %d %d\n", r, stage[r], c); \
     if :: receipt[c] < stage[r] -> receipt[c] = stage[r] :: else fi; message[OF(r, c)] = WRITTEN } \
:: d_step { message[OF(r, c)] == WRITING && !FENCED(r) -> \
     printf("@ %d refused %d\n", r, c); message[OF(r, c)] = IDLE; lost[r] = 1 } \
:: d_step { message[OF(r, c)] == WRITTEN -> \
     printf("@ %d acknowledge %d %d\n", r, stage[r], c); known[OF(r, c)] = stage[r]; \
     if :: !DEPARTED(r, c) -> answered[r] = answered[r] | BIT(c) :: else fi; \
     acknowledge(c, stage[r]); message[OF(r, c)] = IDLE } \
:: d_step { LEADS(r) && work[r] == WAITING && !out[c] && stage[r] == INPUT && acknowledged[c] + 1 == INPUT \
     && !HAS(spool[r], c) && !DEPARTED(r, c) && message[OF(r, c)] == IDLE UNKNOWN(r, c) -> \
     printf("@ %d parts %d\n", r, c); spool[r] = spool[r] | BIT(c) } \
:: d_step { LEADS(r) && work[r] == WAITING && !out[c] && stage[r] == INPUT && acknowledged[c] + 1 == INPUT \
     && HAS(spool[r], c) && !DEPARTED(r, c) && message[OF(r, c)] == IDLE UNKNOWN(r, c) -> \
     printf("@ %d put_vector %d\n", r, c); vectors = vectors | BIT(c); message[OF(r, c)] = PUBLISHED } \
:: d_step { message[OF(r, c)] == PUBLISHED && work[r] == WAITING && stage[r] == INPUT && !DEPARTED(r, c) -> \
     printf("@ %d admit %d\n", r, c); admit(r, c); ANSWERED_FIRST(r, c) message[OF(r, c)] = RECORDING } \
:: d_step { message[OF(r, c)] == PUBLISHED && (work[r] > WAITING || stage[r] != INPUT || DEPARTED(r, c)) -> \
     printf("@ %d late %d\n", r, c); out[c] = 1; message[OF(r, c)] = IDLE } \
:: d_step { message[OF(r, c)] == RECORDING && FENCED(r) -> write(r); \
     printf("@ %d add_receipt %d %d\n", r, INPUT, c); \
     if :: receipt[c] < INPUT -> receipt[c] = INPUT :: else fi; known[OF(r, c)] = INPUT; message[OF(r, c)] = RECORDED } \
:: d_step { message[OF(r, c)] == RECORDING && !FENCED(r) -> \
     printf("@ %d refused %d\n", r, c); refuse(r, c); message[OF(r, c)] = IDLE; lost[r] = 1 } \
:: d_step { message[OF(r, c)] == RECORDED && lock[r] == CLIENTS -> \
     printf("@ %d fold %d\n", r, c); sum[OF(r, c)]++; lock[r] = c; message[OF(r, c)] = ADDED } \
:: d_step { message[OF(r, c)] == ADDED -> \
     printf("@ %d take %d\n", r, c); take(r, c); acknowledge(c, INPUT); lock[r] = CLIENTS; message[OF(r, c)] = IDLE } \
SAVE_BETWEEN(r, c) \
:: d_step { work[r] == WAITING && !lost[r] && !DEPARTED(r, c) && !HAS(answered[r], c) && DROPS && disturbances > 0 && !out[c] -> \
     printf("@ %d drop %d\n", r, c); disturbances--; leave_out(r, c) } \
:: d_step { work[r] == WAITING && !lost[r] && !DEPARTED(r, c) && SILENT(r, c) && message[OF(r, c)] == IDLE \
     && !HAS(answered[r], c) -> \
     printf("@ %d drop %d\n", r, c); leave_out(r, c) }

#ifdef FAULT_NO_DEDUPLICATION
#define REPEATED && stage[r] != INPUT
#define UNKNOWN(r, c)
#else
#define REPEATED
#define UNKNOWN(r, c) && known[OF(r, c)] < INPUT
#endif
#ifdef FAULT_ANSWERED_FIRST
#define ANSWERED_FIRST(r, c) acknowledge(c, INPUT);
#else
#define ANSWERED_FIRST(r, c)
#endif
#ifdef ONE_SAVE
#define SAVE_BETWEEN(r, c)
#else
/* Between two vectors, with the lock: the sum so far is saved, and then what is in it removed. */
#define SAVE_BETWEEN(r, c) \
:: d_step { message[OF(r, c)] == ADDED && FENCED(r) && kept[r] != SUMMED(r) -> write(r); \
     printf("@ %d save_partial_sum %d\n", r, SUMMED(r)); save(r); message[OF(r, c)] = STORED } \
:: d_step { message[OF(r, c)] == STORED -> \
     printf("@ %d remove_vectors %d\n", r, kept[r]); vectors = vectors & ~kept[r]; message[OF(r, c)] = ADDED }
#endif

/* A client that says nothing more in this stage: it left, or its server has lost what it acknowledged. */
#ifdef FAULT_ANSWERED_FIRST
#define SILENT(r, c) (out[c] || (acknowledged[c] >= stage[r] && known[OF(r, c)] < stage[r]))
#else
#define SILENT(r, c) out[c]
#endif

#define SUMMED(r) ((sum[OF(r, 0)] > 0) | ((sum[OF(r, 1)] > 0) << 1))

#define IS_SAVED(r) (kept[r] != 0 && kept[r] == SUMMED(r))

inline save(r) {
  folded = SUMMED(r); kept[r] = folded;
  i = 0;
  do :: i < CLIENTS -> saved[i] = sum[OF(r, i)]; i++ :: else -> break od;
  i = 0
}

proctype Server(byte r) {
  byte i;
  do
  /* --- the lease, and what ends a process --- */
  :: d_step { work[r] == STANDBY && !finished && FREE(r) ->
       printf("@ %d take_lease\n", r); generation++; holder = r; fence[r] = generation; work[r] = STARTING }
  :: d_step { work[r] == STANDBY && !finished && holder != SERVERS && work[holder] != STANDBY && TAKEOVERS &&
       disturbances > 0 ->
       printf("@ %d take_lease\n", r); disturbances--; generation++; holder = r; fence[r] = generation;
       work[r] = STARTING }
  :: d_step { work[r] != STANDBY && fence[r] != generation ->   /* renew_lease says so */
       printf("@ %d renew_lease\n", r); cease(r) }
  :: d_step { work[r] != STANDBY && work[r] != OVER && fence[r] == generation && KILLS &&
       disturbances > 0 ->
       printf("@ %d kill\n", r); disturbances--; cease(r) }

  /* --- a run and its exchange are taken up --- */
  :: d_step { work[r] == STARTING && FENCED(r) && !running -> write(r);
       printf("@ %d start_run\n", r); running = 1; work[r] = OPENING }
  :: d_step { work[r] == STARTING && running -> work[r] = OPENING }
  :: d_step { work[r] == OPENING && FENCED(r) && !stepped -> write(r);
       printf("@ %d open_step\n", r); stepped = 1; work[r] = ADDING }
  :: d_step { work[r] == OPENING && stepped && row == ABSENT -> work[r] = ADDING }
  :: d_step { work[r] == OPENING && stepped && row != ABSENT -> work[r] = READING }
  :: d_step { work[r] == ADDING && FENCED(r) -> write(r);
       printf("@ %d add_exchange\n", r); row = FIRST; stage[r] = FIRST; known[OF(r, 0)] = FIRST - 1;
       known[OF(r, 1)] = FIRST - 1; work[r] = WAITING }
  :: d_step { work[r] == READING && row < DONE ->
       printf("@ %d history\n", r); restore(r); work[r] = WAITING }
  :: d_step { work[r] == READING && row >= DONE && !answer ->
       printf("@ %d history\n", r); stage[r] = row; fails[r] = (row == FAILED); work[r] = ENDED }
  :: d_step { work[r] == READING && row >= DONE && answer ->
       printf("@ %d history\n", r); stage[r] = row; count_total(r); work[r] = REPORTING }

  /* --- its stages --- */
  CLIENT(r, 0)
  CLIENT(r, 1)
  :: d_step { work[r] == WAITING && !lost[r] && READY(r, 0) && READY(r, 1) ->
       printf("@ %d close\n", r);
       if
       :: answered[r] == 0 -> fails[r] = 1; work[r] = ENDING
       :: answered[r] != 0 && stage[r] == INPUT -> work[r] = SAVING
       :: answered[r] != 0 && stage[r] == UNMASK -> work[r] = FINISHING
       :: else -> work[r] = CLOSING
       fi;
#ifdef FAULT_REMOVED_FIRST
       if :: work[r] == SAVING -> vectors = 0 :: else fi
#endif
     }
  :: d_step { work[r] == SAVING && (FENCED(r) || IS_SAVED(r)) ->
       if
       :: !IS_SAVED(r) -> write(r); printf("@ %d save_partial_sum %d\n", r, SUMMED(r)); save(r)
       :: else
       fi;
       work[r] = CLOSING }
#ifdef FAULT_DISCLOSED_FIRST
  :: d_step { work[r] == CLOSING && stage[r] == INPUT && disclosed[INPUT] == 0 ->
       printf("@ %d disclose\n", r); disclose(INPUT, answered[r]) }
#endif
  :: d_step { work[r] == CLOSING && FENCED(r) && row == stage[r] -> write(r);
       printf("@ %d close_stage %d\n", r, stage[r]);
       row = stage[r] + 1; closing[stage[r]] = answered[r];
       i = 0;
       do
       :: i < CLIENTS -> if :: DEPARTED(r, i) -> gone = gone | BIT(i) :: else fi; i++
       :: else -> break
       od;
       i = 0; work[r] = CLEANING }
  :: d_step { work[r] == CLEANING ->
       printf("@ %d begin %d\n", r, stage[r] + 1);
       if :: stage[r] == INPUT -> vectors = 0 :: else fi;
       disclose(stage[r], answered[r]); answered[r] = 0; stage[r] = stage[r] + 1; work[r] = WAITING }
  :: d_step { work[r] == FINISHING -> work[r] = ENDING }
  :: d_step { work[r] == ENDING && FENCED(r) && row == stage[r] -> write(r);
       printf("@ %d end_exchange %d\n", r, fails[r]);
       set_total(r);
       if :: fails[r] -> row = FAILED :: else -> row = DONE; check_total() fi;
       work[r] = RETURNING }
  :: d_step { work[r] == RETURNING -> printf("@ %d ended\n", r); work[r] = ENDED }

  /* --- the operator cancels the run --- */
  :: d_step { work[r] >= WAITING && work[r] <= RETURNING && !lost[r] && fence[r] == generation &&
       CANCELS && disturbances > 0 ->
       printf("@ %d cancel\n", r); disturbances--; i = 0;
       do :: i < CLIENTS -> message[OF(r, i)] = IDLE; i++ :: else -> break od;
       i = 0; work[r] = ABANDONING }
#ifdef FAULT_END_OF_THE_ABANDONED
  :: d_step { work[r] == ABANDONING && FENCED(r) -> write(r);
       printf("@ %d end_exchange 1\n", r); assert(row < DONE); row = FAILED; fails[r] = 1; work[r] = ENDED }
#else
  :: d_step { work[r] == ABANDONING && row >= DONE ->
       printf("@ %d exchange\n", r); fails[r] = (row == FAILED); work[r] = ENDED }
  :: d_step { work[r] == ABANDONING && row < DONE && FENCED(r) ->
       printf("@ %d exchange\n", r); stage[r] = row; fails[r] = 1; work[r] = ENDING }
#endif

  /* --- the end --- */
  :: d_step { work[r] == ENDED -> printf("@ %d delete_files\n", r); vectors = 0; work[r] = ANSWERING }
  :: d_step { work[r] == ANSWERING && FENCED(r) -> write(r);
       printf("@ %d answer_step\n", r); count_total(r); answer = 1; work[r] = REPORTING }
  :: d_step { work[r] == REPORTING && FENCED(r) -> write(r);
       printf("@ %d end_run\n", r);
       i = 0;
       do
       :: i < CLIENTS -> model[i] = counted[OF(r, i)]; assert(model[i] == total[i]); i++
       :: else -> break
       od;
       i = 0; finished = 1; work[r] = OVER }
  :: finished && (work[r] == STANDBY || work[r] == OVER) -> break
  od
}

init {
  atomic {
    lock[0] = CLIENTS; lock[1] = CLIENTS;
    acknowledged[0] = FIRST - 1; acknowledged[1] = FIRST - 1; receipt[0] = FIRST - 1; receipt[1] = FIRST - 1;
    run Server(0); run Server(1)
  }
}
