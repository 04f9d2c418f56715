/* Loads the library, uses it, closes it while threads of it are about, and does so again: a plug-in that is unloaded. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "nccl.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void check(int is_good, const char* what, int line) {
  if (is_good) return;
  const char* why = dlerror();
  fprintf(stderr, "line %d: %s (%s)\n", line, what, why == NULL ? "" : why);
  exit(1);
}

#define CHECK(condition) check(condition, #condition, __LINE__)
#define FIND(name) \
  __typeof__(&name) call_##name; \
  *(void**)&call_##name = dlsym(library, #name); \
  CHECK(call_##name != NULL)

static int sum(int times) {
  void* library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  float from[4] = {1, 2, 3, 4}, to[4] = {0};
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclComm_t comms[2], waiting;
  ncclUniqueId id;
  int version = 0, rank;
  CHECK(library != NULL);
  FIND(ncclGetVersion);
  FIND(ncclGetUniqueId);
  FIND(ncclCommInitAll);
  FIND(ncclCommInitRankConfig);
  FIND(ncclCommSplit);
  FIND(ncclCommAbort);
  FIND(ncclCommDestroy);
  FIND(ncclAllReduce);
  FIND(ncclGroupStart);
  FIND(ncclGroupEnd);
  CHECK(call_ncclGetVersion(&version) == ncclSuccess && version == 23203);
  CHECK(call_ncclCommInitAll(comms, 2, NULL) == ncclSuccess);
  /* A rank of it is alone in this one, and so copies. */
  ncclComm_t alone[2];
  CHECK(call_ncclGroupStart() == ncclSuccess);
  for (rank = 0; rank < 2; rank++) {
    CHECK(call_ncclCommSplit(comms[rank], rank, 0, &alone[rank], NULL) == ncclSuccess);
  }
  CHECK(call_ncclGroupEnd() == ncclSuccess);
  from[0] = (float)times;
  CHECK(call_ncclAllReduce(from, to, 4, ncclFloat32, ncclSum, alone[1], NULL) == ncclSuccess);
  CHECK(memcmp(from, to, sizeof to) == 0);
  /* One that waits for a rank that never comes, so that a thread of the library is at work when it is closed. */
  config.blocking = 0;
  CHECK(call_ncclGetUniqueId(&id) == ncclSuccess);
  CHECK(call_ncclCommInitRankConfig(&waiting, 2, id, 0, &config) == ncclInProgress);
  for (rank = 0; rank < 2; rank++) {
    CHECK(call_ncclCommDestroy(alone[rank]) == ncclSuccess);
    CHECK(call_ncclCommDestroy(comms[rank]) == ncclSuccess);
  }
  if (times % 2 == 0) CHECK(call_ncclCommAbort(waiting) == ncclSuccess);
  CHECK(dlclose(library) == 0);
  usleep(20000);
  return version;
}

int main(void) {
  int times;
  for (times = 0; times < 4; times++) sum(times);
  printf("reload: ok\n");
  return 0;
}
