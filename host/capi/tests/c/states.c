/* States of communicators and groups. The driver below the library has GPUs whose memory is the host's, and runs no kernel: ranks that
 * are alone copy. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "nccl.h"
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void fail(const char* what, int line) {
  fprintf(stderr, "line %d: %s (%s)\n", line, what, ncclGetLastError(NULL));
  exit(1);
}

#define CHECK(condition) ((condition) ? (void)0 : fail(#condition, __LINE__))
#define OK(call) CHECK((call) == ncclSuccess)
#define GIVES(code, call) CHECK((call) == (code))

static void* driver(const char* name) {
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  void* function = library == NULL ? NULL : dlsym(library, name);
  CHECK(function != NULL);
  return function;
}

/* Makes a GPU's context current; -1: none. */
static void use_gpu(int ordinal) {
  int (*retain)(void**, int), (*push)(void*), (*pop)(void**), (*get)(void**);
  void* context = NULL;
  *(void**)&retain = driver("cuDevicePrimaryCtxRetain");
  *(void**)&push = driver("cuCtxPushCurrent_v2");
  *(void**)&pop = driver("cuCtxPopCurrent_v2");
  *(void**)&get = driver("cuCtxGetCurrent");
  get(&context);
  while (context != NULL) {
    pop(&context);
    get(&context);
  }
  if (ordinal >= 0) {
    retain(&context, ordinal);
    push(context);
  }
}

static void* current(void) {
  int (*get)(void**);
  void* context = NULL;
  *(void**)&get = driver("cuCtxGetCurrent");
  get(&context);
  return context;
}

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static ncclComm_t alone(void) {
  ncclUniqueId id;
  ncclComm_t comm;
  OK(ncclGetUniqueId(&id));
  OK(ncclCommInitRank(&comm, 1, id, 0));
  return comm;
}

static ncclResult_t await(ncclComm_t comm) {
  ncclResult_t state = ncclInProgress;
  double start = seconds();
  while (state == ncclInProgress && seconds() - start < 60) {
    OK(ncclCommGetAsyncError(comm, &state));
    usleep(200);
  }
  return state;
}

static void one_rank(void) {
  float from[4] = {1, 2, 3, 4}, to[4] = {0}, other[4] = {0};
  int number = -1;
  ncclResult_t state;
  use_gpu(2);
  void* before = current();
  ncclComm_t comm = alone();
  CHECK(current() == before && before != NULL);
  OK(ncclCommCount(comm, &number));
  CHECK(number == 1);
  OK(ncclCommUserRank(comm, &number));
  CHECK(number == 0);
  OK(ncclCommCuDevice(comm, &number));
  CHECK(number == 2);
  OK(ncclCommGetAsyncError(comm, &state));
  CHECK(state == ncclSuccess);
  OK(ncclAllReduce(from, to, 4, ncclFloat32, ncclSum, comm, NULL));
  CHECK(memcmp(from, to, sizeof to) == 0);
  /* Nothing of a group happens before its outermost end. */
  from[0] = 9;
  OK(ncclGroupStart());
  OK(ncclGroupStart());
  OK(ncclBroadcast(from, to, 4, ncclFloat32, 0, comm, NULL));
  OK(ncclGroupEnd());
  OK(ncclAllGather(from, other, 4, ncclFloat32, comm, NULL));
  CHECK(to[0] == 1 && other[0] == 0);
  OK(ncclGroupEnd());
  CHECK(to[0] == 9 && other[0] == 9);
  /* A refused call stops the whole group. */
  from[0] = 5;
  OK(ncclGroupStart());
  OK(ncclBroadcast(from, to, 4, ncclFloat32, 0, comm, NULL));
  GIVES(ncclInvalidArgument, ncclBroadcast(from, to, 4, ncclFloat32, 1, comm, NULL));
  GIVES(ncclInvalidArgument, ncclGroupEnd());
  CHECK(to[0] == 9);
  OK(ncclBroadcast(from, to, 4, ncclFloat32, 0, comm, NULL));
  CHECK(to[0] == 5);
  /* Wrong arguments leave the communicator as it is. */
  GIVES(ncclInvalidArgument, ncclAllReduce(from, to, 4, (ncclDataType_t)12, ncclSum, comm, NULL));
  GIVES(ncclInvalidArgument, ncclAllReduce(from, to, 4, ncclFloat32, (ncclRedOp_t)5, comm, NULL));
  GIVES(ncclInvalidArgument, ncclAllReduce(NULL, to, 4, ncclFloat32, ncclSum, comm, NULL));
  GIVES(ncclInvalidArgument, ncclAllReduce(from, to, SIZE_MAX, ncclFloat32, ncclSum, comm, NULL));
  GIVES(ncclInvalidArgument, ncclReduce(from, to, 4, ncclFloat32, ncclSum, -1, comm, NULL));
  GIVES(ncclInvalidArgument, ncclSend(from, 4, ncclFloat32, 7, comm, NULL));
  OK(ncclAllReduce(from, to, 0, ncclFloat32, ncclSum, comm, NULL));
  OK(ncclCommDestroy(comm));
  GIVES(ncclInvalidArgument, ncclAllReduce(from, to, 4, ncclFloat32, ncclSum, comm, NULL));
  GIVES(ncclInvalidArgument, ncclCommDestroy(comm));
  GIVES(ncclInvalidArgument, ncclCommAbort(comm));
  CHECK(current() == before);
}

static void init_all(void) {
  ncclComm_t comms[4];
  int rank, number, twice[2] = {1, 1}, two[2] = {3, 1};
  GIVES(ncclInvalidArgument, ncclCommInitAll(comms, 5, NULL));
  GIVES(ncclInvalidArgument, ncclCommInitAll(comms, 2, twice));
  OK(ncclCommInitAll(comms, 2, two));
  OK(ncclCommCuDevice(comms[0], &number));
  CHECK(number == 3);
  OK(ncclCommDestroy(comms[0]));
  OK(ncclCommDestroy(comms[1]));
  OK(ncclCommInitAll(comms, 4, NULL));
  for (rank = 0; rank < 4; rank++) {
    OK(ncclCommUserRank(comms[rank], &number));
    CHECK(number == rank);
    OK(ncclCommCuDevice(comms[rank], &number));
    CHECK(number == rank);
    OK(ncclCommCount(comms[rank], &number));
    CHECK(number == 4);
  }
  for (rank = 0; rank < 4; rank++) {
    OK(ncclCommFinalize(comms[rank]));
  }
  for (rank = 0; rank < 4; rank++) {
    OK(ncclCommDestroy(comms[rank]));
  }
}

static void init_two(ncclComm_t* comms, ncclConfig_t* config) {
  ncclUniqueId id;
  int rank;
  OK(ncclGetUniqueId(&id));
  OK(ncclGroupStart());
  for (rank = 0; rank < 2; rank++) {
    use_gpu(rank);
    OK(ncclCommInitRankConfig(&comms[rank], 2, id, rank, config));
    GIVES(ncclInvalidArgument, ncclCommCount(comms[rank], &rank));
  }
  use_gpu(-1);
  ncclResult_t end = ncclGroupEnd();
  CHECK(end == (config == NULL ? ncclSuccess : ncclInProgress));
}

static void init_split_and_destroy_in_groups(void) {
  ncclComm_t comms[2], halves[2], same[2];
  int rank, number;
  init_two(comms, NULL);
  OK(ncclGroupStart());
  for (rank = 0; rank < 2; rank++) {
    OK(ncclCommSplit(comms[rank], 0, -rank, &same[rank], NULL));
  }
  OK(ncclGroupEnd());
  OK(ncclCommUserRank(same[0], &number));
  CHECK(number == 1);
  OK(ncclCommUserRank(same[1], &number));
  CHECK(number == 0);
  OK(ncclGroupStart());
  OK(ncclCommSplit(comms[0], NCCL_SPLIT_NOCOLOR, 0, &halves[0], NULL));
  OK(ncclCommSplit(comms[1], 7, 0, &halves[1], NULL));
  OK(ncclGroupEnd());
  CHECK(halves[0] == NULL);
  OK(ncclCommCount(halves[1], &number));
  CHECK(number == 1);
  GIVES(ncclInvalidArgument, ncclCommSplit(comms[0], -2, 0, &halves[0], NULL));
  OK(ncclGroupStart());
  for (rank = 0; rank < 2; rank++) {
    OK(ncclCommDestroy(comms[rank]));
    OK(ncclCommDestroy(same[rank]));
  }
  OK(ncclGroupEnd());
  GIVES(ncclInvalidArgument, ncclCommCount(comms[0], &number));
  OK(ncclCommDestroy(halves[1]));
}

static void non_blocking_init(void) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclComm_t comms[2], child[2];
  int rank, number;
  config.blocking = 0;
  init_two(comms, &config);
  CHECK(await(comms[0]) == ncclSuccess && await(comms[1]) == ncclSuccess);
  OK(ncclCommCount(comms[1], &number));
  CHECK(number == 2);
  for (rank = 0; rank < 2; rank++) {
    GIVES(ncclInProgress, ncclCommSplit(comms[rank], 1, rank, &child[rank], NULL));
  }
  CHECK(await(child[0]) == ncclSuccess && await(child[1]) == ncclSuccess);
  for (rank = 0; rank < 2; rank++) {
    CHECK(await(comms[rank]) == ncclSuccess);
    GIVES(ncclInProgress, ncclCommFinalize(child[rank]));
  }
  for (rank = 0; rank < 2; rank++) {
    CHECK(await(child[rank]) == ncclSuccess);
    OK(ncclCommDestroy(child[rank]));
  }
  OK(ncclCommAbort(comms[0]));
  OK(ncclCommAbort(comms[1]));
}

static void abort_of_a_non_blocking_init(void) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclUniqueId id;
  ncclComm_t comm;
  ncclResult_t state;
  float memory[2] = {0};
  int number;
  config.blocking = 0;
  OK(ncclGetUniqueId(&id));
  /* The other rank never comes. */
  GIVES(ncclInProgress, ncclCommInitRankConfig(&comm, 2, id, 0, &config));
  OK(ncclCommGetAsyncError(comm, &state));
  CHECK(state == ncclInProgress);
  GIVES(ncclInvalidArgument, ncclCommCount(comm, &number));
  GIVES(ncclInvalidArgument, ncclAllReduce(memory, memory, 2, ncclFloat32, ncclSum, comm, NULL));
  CHECK(strstr(ncclGetLastError(comm), "ncclCommGetAsyncError") != NULL);
  GIVES(ncclInvalidArgument, ncclCommFinalize(comm));
  double start = seconds();
  OK(ncclCommAbort(comm));
  CHECK(seconds() - start < 30);
  GIVES(ncclInvalidArgument, ncclCommGetAsyncError(comm, &state));
}

struct Joining {
  ncclUniqueId id;
  ncclComm_t volatile comm;
  ncclResult_t result;
};

static void* join_alone(void* argument) {
  struct Joining* joining = (struct Joining*)argument;
  joining->result = ncclCommInitRank((ncclComm_t*)&joining->comm, 2, joining->id, 0);
  return NULL;
}

static void abort_of_a_blocking_init(void) {
  struct Joining joining;
  pthread_t thread;
  memset(&joining, 0, sizeof joining);
  OK(ncclGetUniqueId(&joining.id));
  CHECK(pthread_create(&thread, NULL, join_alone, &joining) == 0);
  while (joining.comm == NULL) {
    usleep(100);
  }
  usleep(50000);
  double start = seconds();
  OK(ncclCommAbort(joining.comm));
  CHECK(pthread_join(thread, NULL) == 0);
  CHECK(seconds() - start < 30);
  CHECK(joining.result != ncclSuccess && joining.result != ncclInProgress && joining.comm == NULL);
}

static volatile int stop;

static void* watch(void* comm) {
  while (!stop) {
    ncclResult_t state;
    OK(ncclCommGetAsyncError((ncclComm_t)comm, &state));
    CHECK(state == ncclSuccess && ncclGetLastError((ncclComm_t)comm) != NULL);
  }
  return NULL;
}

static void a_watchdog_asks_while_another_enqueues(void) {
  float from[4] = {1, 2, 3, 4}, to[4];
  pthread_t thread;
  int at;
  ncclComm_t comm = alone();
  CHECK(pthread_create(&thread, NULL, watch, comm) == 0);
  for (at = 0; at < 20000; at++) {
    OK(ncclAllReduce(from, to, 4, ncclFloat32, ncclSum, comm, NULL));
  }
  stop = 1;
  CHECK(pthread_join(thread, NULL) == 0);
  OK(ncclCommDestroy(comm));
}

static void finalize(void) {
  float memory[4] = {0};
  ncclResult_t state;
  ncclComm_t comm = alone(), child;
  OK(ncclCommFinalize(comm));
  OK(ncclCommGetAsyncError(comm, &state));
  CHECK(state == ncclSuccess);
  GIVES(ncclInvalidUsage, ncclAllReduce(memory, memory, 4, ncclFloat32, ncclSum, comm, NULL));
  GIVES(ncclInvalidUsage, ncclCommSplit(comm, 0, 0, &child, NULL));
  GIVES(ncclInvalidUsage, ncclCommFinalize(comm));
  OK(ncclCommDestroy(comm));
}

/* A group that is refused, simulated, or stopped by its operations has finalized nothing: nobody waits for that for ever. */
static void a_refused_group_ends_nothing(void) {
  float from[4] = {1, 2, 3, 4}, to[4] = {0};
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclSimInfo_t simulated = NCCL_SIM_INFO_INITIALIZER;
  ncclResult_t state;
  ncclUniqueId id;
  ncclComm_t comm = alone(), suspended = alone(), gone = alone(), child;
  OK(ncclCommSuspend(suspended, NCCL_SUSPEND_MEM));
  OK(ncclGroupStart());
  OK(ncclCommFinalize(comm));
  OK(ncclCommFinalize(suspended));
  OK(ncclCommDestroy(gone));
  GIVES(ncclInvalidArgument, ncclBroadcast(from, to, 4, ncclFloat32, 7, comm, NULL));
  GIVES(ncclInvalidArgument, ncclGroupEnd());
  GIVES(ncclInvalidArgument, ncclCommGetAsyncError(gone, &state));
  OK(ncclCommResume(suspended));
  OK(ncclCommDestroy(suspended));
  OK(ncclAllReduce(from, to, 4, ncclFloat32, ncclSum, comm, NULL));
  CHECK(to[3] == 4);
  OK(ncclGroupStart());
  OK(ncclCommFinalize(comm));
  OK(ncclGroupSimulateEnd(&simulated));
  OK(ncclAllReduce(from, to, 4, ncclFloat32, ncclSum, comm, NULL));
  /* Nor has a split that did not begin kept its parent busy. */
  config.blocking = 0;
  OK(ncclCommDestroy(comm));
  OK(ncclGetUniqueId(&id));
  GIVES(ncclInProgress, ncclCommInitRankConfig(&comm, 1, id, 0, &config));
  CHECK(await(comm) == ncclSuccess);
  OK(ncclGroupStart());
  OK(ncclCommSplit(comm, 0, 0, &child, NULL));
  GIVES(ncclInvalidArgument, ncclBroadcast(from, to, 4, ncclFloat32, 7, comm, NULL));
  GIVES(ncclInvalidArgument, ncclGroupEnd());
  OK(ncclCommGetAsyncError(child, &state));
  CHECK(state == ncclInvalidArgument);
  OK(ncclCommDestroy(child));
  CHECK(await(comm) == ncclSuccess);
  /* The send has no receive: the group's operations fail, and what was to follow them is not left half begun. */
  OK(ncclGroupStart());
  OK(ncclSend(from, 4, ncclFloat32, 0, comm, NULL));
  OK(ncclCommFinalize(comm));
  GIVES(ncclInvalidUsage, ncclGroupEnd());
  OK(ncclCommGetAsyncError(comm, &state));
  CHECK(state == ncclInvalidUsage);
  double start = seconds();
  OK(ncclCommDestroy(comm));
  CHECK(seconds() - start < 30);
}

/* A message to oneself without its other end is the caller's fault, and no other call is. */
static void lonely_messages(void) {
  float from[4] = {1, 2, 3, 4}, to[4] = {0};
  ncclComm_t comm = alone();
  OK(ncclAllReduce(from, to, 4, ncclFloat32, ncclSum, comm, NULL));
  GIVES(ncclInvalidUsage, ncclSend(from, 4, ncclFloat32, 0, comm, NULL));
  CHECK(strstr(ncclGetLastError(comm), "sends to itself") != NULL);
  CHECK(strstr(ncclGetLastError(comm), "another operation") == NULL);
  CHECK(strstr(ncclGetLastError(comm), "all_reduce") == NULL);
  OK(ncclCommDestroy(comm));
}

static void foreign_handles(void) {
  ncclComm_t one = alone(), other = alone();
  ncclRedOp_t op, freed;
  ncclWindow_t window;
  void *handle, *pointer;
  float scalar = 2, memory[4] = {0};
  static char __attribute__((aligned(4096))) page[8192];
  OK(ncclRedOpCreatePreMulSum(&op, &scalar, ncclFloat32, ncclScalarHostImmediate, one));
  GIVES(ncclInvalidArgument, ncclAllReduce(memory, memory, 4, ncclFloat32, op, other, NULL));
  GIVES(ncclInvalidArgument, ncclAllReduce(memory, memory, 4, ncclInt32, op, one, NULL));
  GIVES(ncclInvalidArgument, ncclRedOpDestroy(op, other));
  GIVES(ncclInvalidArgument, ncclRedOpDestroy(ncclAvg, one));
  freed = op;
  OK(ncclRedOpDestroy(op, one));
  GIVES(ncclInvalidArgument, ncclAllReduce(memory, memory, 4, ncclFloat32, freed, one, NULL));
  GIVES(ncclInvalidArgument, ncclRedOpDestroy(freed, one));
  OK(ncclCommRegister(one, memory, sizeof memory, &handle));
  GIVES(ncclInvalidArgument, ncclCommDeregister(other, handle));
  OK(ncclCommDeregister(one, handle));
  GIVES(ncclInvalidArgument, ncclCommDeregister(one, handle));
  GIVES(ncclInvalidArgument, ncclCommWindowRegister(one, page + 8, 64, &window, NCCL_WIN_DEFAULT));
  GIVES(ncclInvalidArgument, ncclCommWindowRegister(one, page, 64, &window, 0x80));
  OK(ncclCommWindowRegister(one, page, sizeof page, &window, NCCL_WIN_COLL_SYMMETRIC));
  GIVES(ncclInvalidArgument, ncclWinGetUserPtr(other, window, &pointer));
  OK(ncclWinGetUserPtr(one, window, &pointer));
  CHECK(pointer == page);
  GIVES(ncclInvalidArgument, ncclCommDestroy((ncclComm_t)window));
  OK(ncclCommWindowDeregister(one, window));
  GIVES(ncclInvalidArgument, ncclWinGetUserPtr(one, window, &pointer));
  OK(ncclCommDestroy(one));
  OK(ncclCommDestroy(other));
}

static void suspend_and_resume(void) {
  float from[4] = {1, 2, 3, 4}, to[4] = {0};
  uint64_t value = 7;
  ncclResult_t state;
  ncclComm_t comm = alone();
  GIVES(ncclInvalidUsage, ncclCommResume(comm));
  GIVES(ncclInvalidArgument, ncclCommSuspend(comm, 0));
  OK(ncclCommMemStats(comm, ncclStatGpuMemSuspended, &value));
  CHECK(value == 0);
  OK(ncclCommSuspend(comm, NCCL_SUSPEND_MEM));
  GIVES(ncclInvalidUsage, ncclAllReduce(from, to, 4, ncclFloat32, ncclSum, comm, NULL));
  GIVES(ncclInvalidUsage, ncclCommSuspend(comm, NCCL_SUSPEND_MEM));
  OK(ncclCommMemStats(comm, ncclStatGpuMemSuspended, &value));
  CHECK(value == 1);
  OK(ncclCommMemStats(comm, ncclStatGpuMemTotal, &value));
  OK(ncclCommGetAsyncError(comm, &state));
  CHECK(state == ncclSuccess);
  OK(ncclCommResume(comm));
  OK(ncclAllReduce(from, to, 4, ncclFloat32, ncclSum, comm, NULL));
  CHECK(to[3] == 4);
  GIVES(ncclInvalidArgument, ncclCommMemStats(comm, (ncclCommMemStat_t)4, &value));
  OK(ncclCommSuspend(comm, NCCL_SUSPEND_MEM));
  OK(ncclCommDestroy(comm));
}

static void shrink_grow_and_revoke(void) {
  ncclComm_t comms[4], rest[2], grown[4];
  ncclUniqueId id, again;
  int wrong[2] = {0, 9}, excluded[2] = {0, 2}, rank, number;
  float data[2] = {0};
  ncclResult_t state;
  OK(ncclCommInitAll(comms, 4, NULL));
  GIVES(ncclInvalidArgument, ncclCommShrink(comms[1], wrong, 2, &rest[0], NULL, NCCL_SHRINK_DEFAULT));
  GIVES(ncclInvalidArgument, ncclCommShrink(comms[0], excluded, 2, &rest[0], NULL, NCCL_SHRINK_DEFAULT));
  GIVES(ncclInvalidArgument, ncclCommShrink(comms[1], excluded, 4, &rest[0], NULL, NCCL_SHRINK_DEFAULT));
  GIVES(ncclInvalidArgument, ncclCommShrink(comms[1], excluded, 2, &rest[0], NULL, 2));
  OK(ncclGroupStart());
  OK(ncclCommShrink(comms[1], excluded, 2, &rest[0], NULL, NCCL_SHRINK_DEFAULT));
  OK(ncclCommShrink(comms[3], excluded, 2, &rest[1], NULL, NCCL_SHRINK_DEFAULT));
  OK(ncclGroupEnd());
  for (rank = 0; rank < 2; rank++) {
    OK(ncclCommUserRank(rest[rank], &number));
    CHECK(number == rank);
  }
  /* Two of four grow by two new ones, on the GPUs that the others had. */
  OK(ncclCommGetUniqueId(rest[1], &id));
  GIVES(ncclInvalidUsage, ncclCommGetUniqueId(rest[1], &again));
  GIVES(ncclInvalidArgument, ncclCommGrow(rest[0], 4, &id, -1, &grown[0], NULL));
  GIVES(ncclInvalidArgument, ncclCommGrow(rest[0], 2, NULL, -1, &grown[0], NULL));
  GIVES(ncclInvalidArgument, ncclCommGrow(rest[0], 4, NULL, 0, &grown[0], NULL));
  GIVES(ncclInvalidArgument, ncclCommGrow(NULL, 4, NULL, 2, &grown[0], NULL));
  OK(ncclGroupStart());
  OK(ncclCommGrow(rest[0], 4, NULL, -1, &grown[0], NULL));
  OK(ncclCommGrow(rest[1], 4, &id, -1, &grown[1], NULL));
  use_gpu(0);
  OK(ncclCommGrow(NULL, 4, &id, 2, &grown[2], NULL));
  use_gpu(2);
  OK(ncclCommGrow(NULL, 4, &id, 3, &grown[3], NULL));
  use_gpu(-1);
  OK(ncclGroupEnd());
  for (rank = 0; rank < 4; rank++) {
    OK(ncclCommUserRank(grown[rank], &number));
    CHECK(number == rank);
    OK(ncclCommDestroy(grown[rank]));
  }
  GIVES(ncclInvalidArgument, ncclCommGrow(rest[1], 4, &id, -1, &grown[1], NULL));
  OK(ncclCommGetUniqueId(rest[1], &again));
  /* Ranks that revoke a communicator can still make others of it. */
  GIVES(ncclInvalidArgument, ncclCommRevoke(rest[0], 1));
  for (rank = 0; rank < 2; rank++) {
    OK(ncclCommRevoke(rest[rank], NCCL_REVOKE_DEFAULT));
    OK(ncclCommGetAsyncError(rest[rank], &state));
    CHECK(state == ncclSuccess);
    GIVES(ncclInvalidUsage, ncclBroadcast(data, data, 2, ncclFloat32, 0, rest[rank], NULL));
    GIVES(ncclInvalidUsage, ncclCommFinalize(rest[rank]));
  }
  OK(ncclGroupStart());
  OK(ncclCommSplit(rest[0], 0, 0, &grown[0], NULL));
  OK(ncclCommSplit(rest[1], 0, 0, &grown[1], NULL));
  OK(ncclGroupEnd());
  OK(ncclGroupStart());
  OK(ncclCommShrink(comms[1], excluded, 2, &grown[2], NULL, NCCL_SHRINK_ABORT));
  OK(ncclCommShrink(comms[3], excluded, 2, &grown[3], NULL, NCCL_SHRINK_ABORT));
  OK(ncclGroupEnd());
  for (rank = 0; rank < 4; rank++) {
    OK(ncclCommDestroy(grown[rank]));
    OK(ncclCommDestroy(comms[rank]));
  }
  OK(ncclCommDestroy(rest[0]));
  OK(ncclCommDestroy(rest[1]));
}

static void memory(void) {
  void *one, *other;
  use_gpu(1);
  OK(ncclMemAlloc(&one, 1000));
  OK(ncclMemAlloc(&other, 1));
  CHECK(one != NULL && other != NULL && one != other);
  GIVES(ncclInvalidArgument, ncclMemFree((char*)one + 1));
  OK(ncclMemFree(one));
  GIVES(ncclInvalidArgument, ncclMemFree(one));
  use_gpu(0);
  OK(ncclMemFree(other));
  GIVES(ncclUnhandledCudaError, ncclMemAlloc(&one, (size_t)1 << 40));
  CHECK(one == NULL);
}

static void settings_of_one_call(void) {
  ncclCollConfig_t config = NCCL_COLLCONFIG_INITIALIZER;
  float from[4] = {1, 2, 3, 4}, to[4] = {0};
  ncclComm_t comm = alone();
  OK(ncclAllReduceConfig(from, to, 4, ncclFloat32, ncclSum, comm, NULL, NULL));
  config.algSelection = "Ring";
  OK(ncclAllReduceConfig(from, to, 4, ncclFloat32, ncclSum, comm, NULL, &config));
  CHECK(to[3] == 4);
  /* What is not there is an error that says what is, or a wish. */
  config.algSelection = "tree";
  GIVES(ncclInvalidUsage, ncclAllReduceConfig(from, to, 4, ncclFloat32, ncclSum, comm, NULL, &config));
  CHECK(strstr(ncclGetLastError(comm), "possible are") != NULL && strstr(ncclGetLastError(comm), "ring") != NULL);
  config.forceAlgSelection = 0;
  OK(ncclAllReduceConfig(from, to, 4, ncclFloat32, ncclSum, comm, NULL, &config));
  config.forceAlgSelection = 1;
  GIVES(ncclInvalidUsage, ncclAlltoAllConfig(from, to, 4, ncclFloat32, comm, NULL, &config));
  config.algSelection = "quick";
  GIVES(ncclInvalidArgument, ncclAllGatherConfig(from, to, 4, ncclFloat32, comm, NULL, &config));
  config.algSelection = "";
  OK(ncclBroadcastConfig(from, to, 4, ncclFloat32, 0, comm, NULL, &config));
  config.minCTAs = 8;
  config.maxCTAs = 4;
  GIVES(ncclInvalidArgument, ncclBroadcastConfig(from, to, 4, ncclFloat32, 0, comm, NULL, &config));
  config.minCTAs = NCCL_CONFIG_UNDEF_INT;
  config.launchCompletionEvent = (void*)from;
  GIVES(ncclInvalidUsage, ncclBroadcastConfig(from, to, 4, ncclFloat32, 0, comm, NULL, &config));
  OK(ncclCommDestroy(comm));
}

/* A stream of the current GPU, and whether it is done. */
static void* new_stream(void) {
  int (*create)(void**, unsigned);
  void* stream = NULL;
  *(void**)&create = driver("cuStreamCreate");
  CHECK(create(&stream, 1) == 0);
  return stream;
}

static int is_done(void* stream) {
  int (*query)(void*);
  int waited;
  *(void**)&query = driver("cuStreamQuery");
  for (waited = 0; waited < 200 && query(stream) != 0; waited++) usleep(500);
  return query(stream) == 0;
}

static int is_busy(void* stream) {
  int (*query)(void*);
  *(void**)&query = driver("cuStreamQuery");
  usleep(5000);
  return query(stream) != 0;
}

/* Of NCCL's header for kernels: as far as 2.30.7 has it. */
struct properties {
  size_t size;
  unsigned magic, version;
  int four[4];
  bool device, multimem;
  int two[2];
  bool host_rma;
  int railed;
};
ncclResult_t ncclCommQueryProperties(ncclComm_t comm, struct properties* properties);

enum { RANKS = 4, FLOATS = 2048 };

static void one_sided(void) {
  ncclComm_t comms[RANKS];
  ncclWindow_t windows[RANKS], unreachable, early;
  cudaStream_t streams[RANKS];
  float *memory[RANKS], from[FLOATS];
  static char __attribute__((aligned(4096))) page[4096];
  ncclWaitSignalDesc_t twice = {2, 0, 3, 1}, wrong = {1, 0, 64, 0};
  ncclWaitSignalDesc_t both[2] = {{1, 1, 0, 0}, {1, 3, 0, 0}};
  struct properties properties = {.size = sizeof properties, .magic = 0xcafebeef, .version = 23203};
  int rank, i;
  for (i = 0; i < FLOATS; i++) from[i] = (float)i;
  OK(ncclCommInitAll(comms, RANKS, NULL));
  for (rank = 0; rank < RANKS; rank++) {
    use_gpu(rank);
    OK(ncclMemAlloc((void**)&memory[rank], sizeof from));
    streams[rank] = (cudaStream_t)new_stream();
  }
  use_gpu(-1);
  /* Registered by one thread, in a group; a put of the same group finds the window. */
  OK(ncclGroupStart());
  for (rank = 0; rank < RANKS; rank++) {
    OK(ncclCommWindowRegister(comms[rank], memory[rank], sizeof from, &windows[rank], NCCL_WIN_DEFAULT));
  }
  OK(ncclPutSignal(from, 16, ncclFloat32, 1, windows[0], 64, 3, 1, 0, comms[0], streams[0]));
  OK(ncclGroupEnd());
  CHECK(memcmp(memory[1] + 16, from, 64) == 0 && memory[1][15] == 0 && memory[1][32] == 0);
  /* Two signals of that kind are waited for, and one has come. */
  OK(ncclWaitSignal(1, &twice, comms[1], streams[1]));
  CHECK(is_busy(streams[1]));
  OK(ncclSignal(1, 3, 0, 0, comms[0], streams[0]));
  OK(ncclSignal(1, 2, 1, 0, comms[0], streams[0]));
  OK(ncclSignal(1, 3, 1, 0, comms[2], streams[2]));
  CHECK(is_busy(streams[1]));
  OK(ncclSignal(1, 3, 1, 0, comms[0], streams[0]));
  CHECK(is_done(streams[1]));
  /* What was waited for is used up; a put to oneself. */
  twice.opCnt = 1;
  OK(ncclWaitSignal(1, &twice, comms[1], streams[1]));
  CHECK(is_busy(streams[1]));
  OK(ncclPutSignal(from, FLOATS, ncclFloat32, 1, windows[0], 0, 3, 1, 0, comms[0], streams[0]));
  CHECK(is_done(streams[1]) && memcmp(memory[1], from, sizeof from) == 0);
  OK(ncclPutSignal(from, 1, ncclFloat32, 2, windows[2], 4, 0, 0, 0, comms[2], streams[2]));
  CHECK(memory[2][1] == 0 && from[0] == 0);
  /* In a group each waits before it signals, and nobody waits for ever. */
  OK(ncclGroupStart());
  for (rank = 0; rank < RANKS; rank++) {
    int next = (rank + 1) % RANKS, before = (rank + RANKS - 1) % RANKS;
    ncclWaitSignalDesc_t once = {1, before, 7, 0};
    OK(ncclWaitSignal(1, &once, comms[rank], streams[rank]));
    OK(ncclPutSignal(from + rank, 1, ncclFloat32, next, windows[rank], 8, 7, 0, 0, comms[rank], streams[rank]));
  }
  OK(ncclGroupEnd());
  for (rank = 0; rank < RANKS; rank++) {
    CHECK(is_done(streams[rank]) && memory[rank][2] == (float)((rank + RANKS - 1) % RANKS));
  }
  OK(ncclWaitSignal(2, both, comms[0], streams[0]));
  OK(ncclSignal(0, 0, 0, 0, comms[3], streams[3]));
  CHECK(is_busy(streams[0]));
  OK(ncclSignal(0, 0, 0, 0, comms[1], streams[1]));
  CHECK(is_done(streams[0]));
  OK(ncclWaitSignal(0, NULL, comms[0], streams[0]));
  CHECK(is_done(streams[0]));
  /* What is refused, and what that leaves as it was. */
  GIVES(ncclInvalidUsage,
        ncclPutSignal(from, 2, ncclFloat32, 1, windows[0], sizeof from - 4, 0, 0, 0, comms[0], streams[0]));
  CHECK(strstr(ncclGetLastError(NULL), "window of rank 1") != NULL);
  GIVES(ncclInvalidUsage,
        ncclPutSignal(from, 1, ncclFloat32, 1, windows[0], (size_t)-4, 0, 0, 0, comms[0], streams[0]));
  GIVES(ncclInvalidArgument,
        ncclPutSignal(from, (size_t)-1, ncclFloat32, 1, windows[0], 0, 0, 0, 0, comms[0], streams[0]));
  GIVES(ncclInvalidArgument, ncclPutSignal(from, 1, ncclFloat32, 4, windows[0], 0, 0, 0, 0, comms[0], streams[0]));
  GIVES(ncclInvalidArgument, ncclPutSignal(from, 1, ncclFloat32, 1, windows[1], 0, 0, 0, 0, comms[0], streams[0]));
  GIVES(ncclInvalidArgument, ncclPutSignal(NULL, 1, ncclFloat32, 1, windows[0], 0, 0, 0, 0, comms[0], streams[0]));
  GIVES(ncclInvalidArgument, ncclSignal(1, 64, 0, 0, comms[0], streams[0]));
  GIVES(ncclInvalidArgument, ncclSignal(1, 0, 4, 0, comms[0], streams[0]));
  GIVES(ncclInvalidArgument, ncclSignal(1, 0, -1, 0, comms[0], streams[0]));
  GIVES(ncclInvalidArgument, ncclSignal(1, 0, 0, 1, comms[0], streams[0]));
  GIVES(ncclInvalidArgument, ncclWaitSignal(1, &wrong, comms[0], streams[0]));
  GIVES(ncclInvalidArgument, ncclWaitSignal(-1, &wrong, comms[0], streams[0]));
  GIVES(ncclInvalidArgument, ncclWaitSignal(1, NULL, comms[0], streams[0]));
  CHECK(is_done(streams[0]) && memory[1][FLOATS - 1] == (float)(FLOATS - 1));
  /* What is no GPU's memory cannot be put into. */
  OK(ncclGroupStart());
  for (rank = 0; rank < RANKS; rank++) {
    OK(ncclCommWindowRegister(comms[rank], page, sizeof page, rank == 0 ? &unreachable : &early, NCCL_WIN_DEFAULT));
  }
  OK(ncclGroupEnd());
  GIVES(ncclInvalidUsage, ncclPutSignal(from, 1, ncclFloat32, 1, unreachable, 0, 0, 0, 0, comms[0], streams[0]));
  CHECK(strstr(ncclGetLastError(NULL), "rank 1's part of the window") != NULL);
  OK(ncclCommWindowDeregister(comms[0], windows[0]));
  GIVES(ncclInvalidArgument, ncclPutSignal(from, 1, ncclFloat32, 1, windows[0], 0, 0, 0, 0, comms[0], streams[0]));
  OK(ncclCommQueryProperties(comms[0], &properties));
  CHECK(properties.host_rma && properties.four[1] == RANKS);
  /* An abort ends a wait. */
  OK(ncclWaitSignal(2, both, comms[0], streams[0]));
  CHECK(is_busy(streams[0]));
  OK(ncclCommAbort(comms[0]));
  CHECK(is_done(streams[0]));
  for (rank = 1; rank < RANKS; rank++) OK(ncclCommAbort(comms[rank]));
  for (rank = 0; rank < RANKS; rank++) OK(ncclMemFree(memory[rank]));
}

/* Floats of a block: more than a MiB, so that a rank's own block goes to a stream of its own. */
#define BLOCK 300000
/* Where the buffers of the test below lie in their windows, in floats. */
#define PLACE 1024

struct copying {
  ncclComm_t comms[RANKS];
  ncclWindow_t windows[RANKS];
  cudaStream_t streams[RANKS];
  float *memory[RANKS], *plain[RANKS];
};

static float element(int rank, int at, int round) {
  return (float)(rank * 1000003 + at + round * 17);
}

static void begin_copying(struct copying* all) {
  const size_t bytes = (PLACE + (size_t)RANKS * BLOCK) * sizeof(float);
  int rank;
  OK(ncclCommInitAll(all->comms, RANKS, NULL));
  for (rank = 0; rank < RANKS; rank++) {
    use_gpu(rank);
    OK(ncclMemAlloc((void**)&all->memory[rank], bytes));
    all->streams[rank] = (cudaStream_t)new_stream();
    all->plain[rank] = malloc(bytes);
    CHECK(all->plain[rank] != NULL);
  }
  use_gpu(-1);
  OK(ncclGroupStart());
  for (rank = 0; rank < RANKS; rank++) {
    OK(ncclCommWindowRegister(all->comms[rank], all->memory[rank], bytes, &all->windows[rank], NCCL_WIN_COLL_SYMMETRIC));
  }
  OK(ncclGroupEnd());
}

/* One function of five on all ranks; the ranks that receive find what MPI says. */
static void copy_once(struct copying* all, int func, int root, bool in_place, int round) {
  int rank, from, at;
  for (rank = 0; rank < RANKS; rank++) {
    float *window = all->memory[rank] + PLACE, *plain = all->plain[rank];
    float* input = func == 4 ? window : in_place ? window + (func == 0 ? rank * BLOCK : 0) : plain;
    memset(func == 4 ? plain : window, 0xff, (size_t)RANKS * BLOCK * sizeof(float));
    for (at = 0; at < (func == 1 || func == 3 ? RANKS * BLOCK : BLOCK); at++) input[at] = element(rank, at, round);
  }
  OK(ncclGroupStart());
  for (rank = 0; rank < RANKS; rank++) {
    ncclComm_t comm = all->comms[rank];
    cudaStream_t on = all->streams[rank];
    float *window = all->memory[rank] + PLACE, *plain = all->plain[rank];
    if (func == 0) {
      OK(ncclAllGather(in_place ? window + rank * BLOCK : plain, window, BLOCK, ncclFloat32, comm, on));
    } else if (func == 1) {
      OK(ncclAlltoAll(plain, window, BLOCK, ncclFloat32, comm, on));
    } else if (func == 2) {
      OK(ncclBroadcast(in_place ? window : plain, window, BLOCK, ncclFloat32, root, comm, on));
    } else if (func == 3) {
      OK(ncclScatter(plain, window, BLOCK, ncclFloat32, root, comm, on));
    } else {
      OK(ncclGather(window, plain, BLOCK, ncclFloat32, root, comm, on));
    }
  }
  OK(ncclGroupEnd());
  for (rank = 0; rank < RANKS; rank++) {
    float *window = all->memory[rank] + PLACE, *plain = all->plain[rank];
    CHECK(is_done(all->streams[rank]));
    for (at = 0; at < BLOCK; at += 997) {
      for (from = 0; from < RANKS; from++) {
        if (func == 0) CHECK(window[from * BLOCK + at] == element(from, at, round));
        if (func == 1) CHECK(window[from * BLOCK + at] == element(from, rank * BLOCK + at, round));
        if (func == 4 && rank == root) CHECK(plain[from * BLOCK + at] == element(from, at, round));
      }
      if (func == 2) CHECK(window[at] == element(root, at, round));
      if (func == 3) CHECK(window[at] == element(root, rank * BLOCK + at, round));
    }
  }
}

static void end_copying(struct copying* all) {
  int rank;
  for (rank = 0; rank < RANKS; rank++) OK(ncclCommWindowDeregister(all->comms[rank], all->windows[rank]));
  OK(ncclGroupStart());
  for (rank = 0; rank < RANKS; rank++) OK(ncclCommDestroy(all->comms[rank]));
  OK(ncclGroupEnd());
  for (rank = 0; rank < RANKS; rank++) {
    OK(ncclMemFree(all->memory[rank]));
    free(all->plain[rank]);
  }
}

/* No kernel runs here: what arrives was copied. */
static void copy_engines(void) {
  struct copying all;
  int (*begin)(void*, int), (*end)(void*, void**), (*make)(void**, void*, unsigned long long), (*launch)(void*, void*);
  void* graphs[RANKS];
  int func, root, rank, round;
  setenv("NCCL_CTA_POLICY", "2", 1);
  begin_copying(&all);
  for (func = 0; func < 5; func++) {
    for (root = 0; root < RANKS; root += func == 0 || func == 1 ? RANKS : 1) {
      copy_once(&all, func, root, false, func * 7 + root);
      if (func == 0 || func == 2) copy_once(&all, func, root, true, func * 11 + root);
    }
  }
  /* In graphs, which are launched more than once. */
  *(void**)&begin = driver("cuStreamBeginCapture_v2");
  *(void**)&end = driver("cuStreamEndCapture");
  *(void**)&make = driver("cuGraphInstantiateWithFlags");
  *(void**)&launch = driver("cuGraphLaunch");
  for (rank = 0; rank < RANKS; rank++) {
    void* graph;
    begin(all.streams[rank], 1);
    OK(ncclAllGather(all.plain[rank], all.memory[rank] + PLACE, BLOCK, ncclFloat32, all.comms[rank], all.streams[rank]));
    CHECK(end(all.streams[rank], &graph) == 0 && make(&graphs[rank], graph, 0) == 0);
  }
  for (round = 0; round < 3; round++) {
    for (rank = 0; rank < RANKS; rank++) {
      all.plain[rank][5] = element(rank, 5, round);
      all.memory[rank][PLACE + 5] = 0;
      launch(graphs[rank], all.streams[rank]);
      CHECK(rank == RANKS - 1 || is_busy(all.streams[rank]));
    }
    for (rank = 0; rank < RANKS; rank++) {
      CHECK(is_done(all.streams[rank]));
      CHECK(all.memory[(rank + 1) % RANKS][PLACE + rank * BLOCK + 5] == element(rank, 5, round));
    }
  }
  copy_once(&all, 0, 0, false, 99);
  end_copying(&all);
}

/* A rank whose buffer lies elsewhere is named, by whoever comes later; nothing hangs and nothing is written. */
static void copy_engines_that_differ(void) {
  struct copying all;
  int rank;
  setenv("NCCL_CTA_POLICY", "2", 1);
  begin_copying(&all);
  memset(all.memory[0], 0, (size_t)BLOCK * sizeof(float));
  OK(ncclAllGather(all.plain[0], all.memory[0] + PLACE, BLOCK / 2, ncclFloat32, all.comms[0], all.streams[0]));
  CHECK(is_busy(all.streams[0]));
  GIVES(ncclInvalidUsage, ncclAllGather(all.plain[1], all.memory[1], BLOCK / 2, ncclFloat32, all.comms[1], all.streams[1]));
  CHECK(strstr(ncclGetLastError(NULL), "rank 0's buffer lies at another offset") != NULL);
  for (rank = 0; rank < 2; rank++) {
    while (!is_done(all.streams[rank])) usleep(1000);
  }
  CHECK(await(all.comms[0]) != ncclSuccess);
  for (rank = 0; rank < RANKS; rank++) OK(ncclCommAbort(all.comms[rank]));
}

/* A rank that does not come: the wait of the others' streams ends, by the timeout and by an abort. */
static void copy_engines_without_a_rank(void) {
  struct copying all;
  double start;
  int rank, turn;
  setenv("NCCL_CTA_POLICY", "2", 1);
  for (turn = 0; turn < 2; turn++) {
    if (turn == 0) setenv("OXCCL_TIMEOUT", "0.3", 1); else unsetenv("OXCCL_TIMEOUT");
    begin_copying(&all);
    for (rank = 0; rank < RANKS - 1; rank++) {
      int often;
      for (often = 0; often < 3; often++) {
        OK(ncclAllGather(all.plain[rank], all.memory[rank] + PLACE, BLOCK, ncclFloat32, all.comms[rank], all.streams[rank]));
      }
      CHECK(is_busy(all.streams[rank]));
    }
    if (turn == 1) OK(ncclCommAbort(all.comms[0]));
    start = seconds();
    for (rank = 0; rank < RANKS - 1; rank++) {
      while (!is_done(all.streams[rank])) CHECK(seconds() - start < 20);
    }
    if (turn == 0) {
      CHECK(seconds() - start > 0.2);
      CHECK(await(all.comms[1]) != ncclSuccess);
      CHECK(ncclAllGather(all.plain[1], all.memory[1], 1, ncclFloat32, all.comms[1], all.streams[1]) != ncclSuccess);
      CHECK(strstr(ncclGetLastError(NULL), "rank 3 did not do its part") != NULL);
    }
    for (rank = turn; rank < RANKS; rank++) OK(ncclCommAbort(all.comms[rank]));
  }
}

/* A rank that has finalized, or is destroyed, does not come, whatever the timeout: the others' streams end, and both sides say why. */
static void copy_engines_without_a_rank_that_ended(void) {
  static const char* const said[2] = {"rank 3 has finalized its communicator after 0 collectives", "rank 3 closed its communicator"};
  const int last = RANKS - 1;
  struct copying all;
  int rank, turn;
  setenv("NCCL_CTA_POLICY", "2", 1);
  for (turn = 0; turn < 2; turn++) {
    double start;
    begin_copying(&all);
    for (rank = 0; rank < last; rank++) {
      OK(ncclAllGather(all.plain[rank], all.memory[rank] + PLACE, BLOCK, ncclFloat32, all.comms[rank], all.streams[rank]));
      CHECK(is_busy(all.streams[rank]));
    }
    start = seconds();
    if (turn == 0) ncclCommFinalize(all.comms[last]); else OK(ncclCommDestroy(all.comms[last]));
    for (rank = 0; rank < last; rank++) {
      while (!is_done(all.streams[rank])) CHECK(seconds() - start < 20);
      CHECK(await(all.comms[rank]) == ncclRemoteError);
    }
    CHECK(ncclAllGather(all.plain[1], all.memory[1], 1, ncclFloat32, all.comms[1], all.streams[1]) == ncclRemoteError);
    CHECK(strstr(ncclGetLastError(NULL), said[turn]) != NULL);
    printf("%.1f s: %s\n", seconds() - start, ncclGetLastError(NULL));
    if (turn == 0) CHECK(await(all.comms[last]) == ncclInvalidUsage);
    for (rank = 0; rank < RANKS - turn; rank++) OK(ncclCommAbort(all.comms[rank]));
  }
}

/* Signals need no window: then the first operations make them, of all ranks at once. */
static void signals_without_windows(void) {
  ncclComm_t comms[RANKS];
  cudaStream_t streams[RANKS];
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclComm_t many;
  ncclUniqueId id;
  int rank;
  OK(ncclCommInitAll(comms, RANKS, NULL));
  OK(ncclGroupStart());
  for (rank = 0; rank < RANKS; rank++) {
    ncclWaitSignalDesc_t once = {1, RANKS - 1 - rank, 0, 0};
    use_gpu(rank);
    streams[rank] = (cudaStream_t)new_stream();
    OK(ncclWaitSignal(1, &once, comms[rank], streams[rank]));
    OK(ncclSignal(RANKS - 1 - rank, 0, 0, 0, comms[rank], streams[rank]));
  }
  OK(ncclGroupEnd());
  for (rank = 0; rank < RANKS; rank++) {
    CHECK(is_done(streams[rank]));
    OK(ncclCommDestroy(comms[rank]));
  }
  OK(ncclGetUniqueId(&id));
  config.numRmaCtx = 2;
  config.numRmaSig = 128;
  OK(ncclCommInitRankConfig(&many, 1, id, 0, &config));
  OK(ncclSignal(0, 127, 1, 0, many, streams[0]));
  GIVES(ncclInvalidArgument, ncclSignal(0, 0, 2, 0, many, streams[0]));
  OK(ncclCommDestroy(many));
  config.numRmaCtx = 3;
  GIVES(ncclInvalidArgument, ncclCommInitRankConfig(&many, 1, id, 0, &config));
}

/* Two windows of a communicator in one group belong together on all ranks in the order of the calls, and so do two splits. */
static void steps_of_a_group_keep_their_order(void) {
  ncclComm_t comms[2], first[2], second[2];
  ncclWindow_t windows[2][8];
  cudaStream_t stream;
  char* memory[2];
  char from = 9;
  int rank, at, number, times;
  OK(ncclCommInitAll(comms, 2, NULL));
  for (rank = 0; rank < 2; rank++) {
    use_gpu(rank);
    OK(ncclMemAlloc((void**)&memory[rank], 8 * 4096));
  }
  stream = (cudaStream_t)new_stream();
  OK(ncclGroupStart());
  for (at = 0; at < 8; at++) {
    for (rank = 0; rank < 2; rank++) {
      void* part = memory[rank] + 4096 * at;
      OK(ncclCommWindowRegister(comms[rank], part, 4096, &windows[rank][at], NCCL_WIN_COLL_SYMMETRIC));
    }
  }
  OK(ncclGroupEnd());
  for (at = 0; at < 8; at++) {
    OK(ncclPutSignal(&from, 1, ncclInt8, 0, windows[1][at], at, 0, 0, 0, comms[1], stream));
    CHECK(memory[0][4097 * at] == 9);
  }
  for (times = 0; times < 10; times++) {
    OK(ncclGroupStart());
    for (rank = 0; rank < 2; rank++) {
      OK(ncclCommSplit(comms[rank], 0, rank, &first[rank], NULL));
      OK(ncclCommSplit(comms[rank], 0, -rank, &second[rank], NULL));
    }
    OK(ncclGroupEnd());
    for (rank = 0; rank < 2; rank++) {
      OK(ncclCommUserRank(first[rank], &number));
      CHECK(number == rank);
      OK(ncclCommUserRank(second[rank], &number));
      CHECK(number == 1 - rank);
      OK(ncclCommDestroy(first[rank]));
      OK(ncclCommDestroy(second[rank]));
    }
  }
  for (rank = 0; rank < 2; rank++) OK(ncclCommDestroy(comms[rank]));
}

static void simulated_groups(void) {
  float from[4] = {1, 2, 3, 4}, to[4] = {0};
  ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
  ncclComm_t comm = alone(), never;
  ncclUniqueId id;
  OK(ncclGroupStart());
  OK(ncclAllReduce(from, to, 4, ncclFloat32, ncclSum, comm, NULL));
  OK(ncclGroupSimulateEnd(&info));
  CHECK(to[0] == 0 && info.estimatedTime >= 0);
  OK(ncclGroupStart());
  OK(ncclGetUniqueId(&id));
  OK(ncclCommInitRank(&never, 2, id, 0));
  OK(ncclGroupSimulateEnd(NULL));
  OK(ncclCommDestroy(never));
  OK(ncclAllReduce(from, to, 4, ncclFloat32, ncclSum, comm, NULL));
  CHECK(to[0] == 1);
  OK(ncclCommDestroy(comm));
}

/* Counts that are too many, or negative, are refused before that much memory is read or taken. */
static void false_counts(void) {
  float buffer[4] = {1, 2, 3, 4};
  int excluded[1] = {0}, devices[1] = {0}, number = 0;
  size_t at;
  static const int wild[] = {-1, INT_MIN, INT_MAX, 1 << 28};
  static const size_t long_[] = {SIZE_MAX, SIZE_MAX / 2, SIZE_MAX / 4 + 1, (size_t)1 << 62};
  ncclWaitSignalDesc_t wait = {1, 0, 0, 0};
  ncclComm_t comm = alone(), other = NULL;
  ncclUniqueId id;
  void* pointer = NULL;
  ncclWindow_t window = NULL;
  static char __attribute__((aligned(4096))) page[4096];
  struct rlimit little = {(rlim_t)4 << 30, (rlim_t)4 << 30};
  OK(ncclGetUniqueId(&id));
  /* Memory in which no such array fits: to take it anyway would end the program. */
  CHECK(setrlimit(RLIMIT_AS, &little) == 0);
  for (at = 0; at < sizeof wild / sizeof wild[0]; at++) {
    int count = wild[at];
    GIVES(ncclInvalidArgument, ncclWaitSignal(count, &wait, comm, NULL));
    GIVES(ncclInvalidArgument, ncclCommInitAll(&other, count, devices));
    GIVES(ncclInvalidArgument, ncclCommShrink(comm, excluded, count, &other, NULL, NCCL_SHRINK_DEFAULT));
    GIVES(ncclInvalidArgument, ncclCommInitRankScalable(&other, 1, 0, count, &id, NULL));
    GIVES(ncclInvalidArgument, ncclCommInitRank(&other, 1, id, count));
    CHECK(ncclCommInitRank(&other, count, id, -1) == ncclInvalidArgument && other == NULL);
    if (count < 0) {
      GIVES(ncclInvalidArgument, ncclCommInitRank(&other, count, id, 0));
      GIVES(ncclInvalidArgument, ncclCommGrow(comm, count, NULL, -1, &other, NULL));
    }
  }
  GIVES(ncclInvalidArgument, ncclCommShrink(comm, excluded, 1, &other, NULL, NCCL_SHRINK_DEFAULT));
  CHECK(strstr(ncclGetLastError(NULL), "has one rank") != NULL);
  CHECK(ncclWaitSignal(1 << 20, NULL, comm, NULL) == ncclInvalidArgument && strstr(ncclGetLastError(NULL), "nDesc") != NULL);
  OK(ncclWaitSignal(0, NULL, comm, NULL));
  for (at = 0; at < sizeof long_ / sizeof long_[0]; at++) {
    size_t count = long_[at];
    GIVES(ncclInvalidArgument, ncclAllReduce(buffer, buffer, count, ncclFloat32, ncclSum, comm, NULL));
    GIVES(ncclInvalidArgument, ncclReduceScatter(buffer, buffer, count, ncclFloat32, ncclSum, comm, NULL));
    GIVES(ncclInvalidArgument, ncclAllGather(buffer, buffer, count, ncclFloat32, comm, NULL));
    GIVES(ncclInvalidArgument, ncclAlltoAll(buffer, buffer, count, ncclFloat32, comm, NULL));
    GIVES(ncclInvalidArgument, ncclBcast(buffer, count, ncclFloat32, 0, comm, NULL));
    GIVES(ncclInvalidArgument, ncclSend(buffer, count, ncclFloat32, 0, comm, NULL));
    CHECK(ncclMemAlloc(&pointer, count) != ncclSuccess && pointer == NULL);
    CHECK(ncclCommWindowRegister(comm, page, SIZE_MAX - at, &window, NCCL_WIN_DEFAULT) == ncclInvalidArgument);
  }
  OK(ncclCommCount(comm, &number));
  CHECK(number == 1);
  OK(ncclCommDestroy(comm));
}

static void fork_(void) {
  float from[4] = {1, 2, 3, 4}, to[4] = {0};
  int status;
  ncclComm_t comm = alone();
  pid_t child = fork();
  if (child == 0) {
    int version, rank;
    char parent[64];
    ncclComm_t other;
    ncclResult_t state;
    OK(ncclGetVersion(&version));
    /* The rank is the parent's: whatever a child asks of it is refused. */
    snprintf(parent, sizeof parent, "created by process %d,", (int)getppid());
    GIVES(ncclInvalidUsage, ncclAllReduce(from, to, 4, ncclFloat32, ncclSum, comm, NULL));
    CHECK(strstr(ncclGetLastError(comm), parent) != NULL && strstr(ncclGetLastError(NULL), "forked child") != NULL);
    GIVES(ncclInvalidUsage, ncclCommSplit(comm, 0, 0, &other, NULL));
    GIVES(ncclInvalidUsage, ncclCommUserRank(comm, &rank));
    GIVES(ncclInvalidUsage, ncclCommGetAsyncError(comm, &state));
    GIVES(ncclInvalidUsage, ncclCommFinalize(comm));
    GIVES(ncclInvalidUsage, ncclCommRevoke(comm, 0));
    /* It may end, which changes nothing. */
    OK(ncclCommDestroy(comm));
    OK(ncclCommAbort(comm));
    OK(ncclCommDestroy(comm));
    exit(0);
  }
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  OK(ncclAllReduce(from, to, 4, ncclFloat32, ncclSum, comm, NULL));
  CHECK(to[2] == 3);
  OK(ncclCommDestroy(comm));
}

static void exit_without_destroy(void) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclComm_t comm, comms[4];
  ncclUniqueId id;
  alone();
  OK(ncclCommInitAll(comms, 4, NULL));
  config.blocking = 0;
  OK(ncclGetUniqueId(&id));
  GIVES(ncclInProgress, ncclCommInitRankConfig(&comm, 2, id, 0, &config));
}

int main(int count, char** arguments) {
  static const struct {
    const char* name;
    void (*run)(void);
  } cases[] = {
      {"one_rank", one_rank},
      {"init_all", init_all},
      {"init_split_and_destroy_in_groups", init_split_and_destroy_in_groups},
      {"non_blocking_init", non_blocking_init},
      {"abort_of_a_non_blocking_init", abort_of_a_non_blocking_init},
      {"abort_of_a_blocking_init", abort_of_a_blocking_init},
      {"a_watchdog_asks_while_another_enqueues", a_watchdog_asks_while_another_enqueues},
      {"finalize", finalize},
      {"a_refused_group_ends_nothing", a_refused_group_ends_nothing},
      {"lonely_messages", lonely_messages},
      {"foreign_handles", foreign_handles},
      {"suspend_and_resume", suspend_and_resume},
      {"shrink_grow_and_revoke", shrink_grow_and_revoke},
      {"memory", memory},
      {"settings_of_one_call", settings_of_one_call},
      {"one_sided", one_sided},
      {"signals_without_windows", signals_without_windows},
      {"copy_engines", copy_engines},
      {"copy_engines_that_differ", copy_engines_that_differ},
      {"copy_engines_without_a_rank", copy_engines_without_a_rank},
      {"copy_engines_without_a_rank_that_ended", copy_engines_without_a_rank_that_ended},
      {"steps_of_a_group_keep_their_order", steps_of_a_group_keep_their_order},
      {"simulated_groups", simulated_groups},
      {"false_counts", false_counts},
      {"fork", fork_},
      {"exit_without_destroy", exit_without_destroy},
  };
  size_t at;
  for (at = 0; at < sizeof cases / sizeof cases[0]; at++) {
    if (count == 2 && strcmp(arguments[1], cases[at].name) == 0) {
      cases[at].run();
      printf("%s: ok\n", cases[at].name);
      return 0;
    }
  }
  fprintf(stderr, "no such case\n");
  return 2;
}
