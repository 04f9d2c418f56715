/* What a program finds that was linked by `pkg-config oxccl`: which library, of which version, and errors without a GPU. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(is_right)                                            \
  do {                                                             \
    if (!(is_right)) {                                             \
      printf("not so: %s (%s)\n", #is_right, ncclGetLastError(0)); \
      return 1;                                                    \
    }                                                              \
  } while (0)

int main(void) {
  int version = 0;
  CHECK(ncclGetVersion(&version) == ncclSuccess && version == NCCL_VERSION_CODE);
  CHECK(strstr(ncclGetErrorString(ncclInvalidArgument), "invalid argument") != NULL);

  ncclUniqueId id;
  memset(&id, 0, sizeof id);
  ncclComm_t comm = NULL;
  CHECK(ncclCommInitRank(&comm, 1, id, 3) == ncclInvalidArgument);
  CHECK(strlen(ncclGetLastError(NULL)) > 0 && comm == NULL);
  CHECK(ncclCommDestroy((ncclComm_t)(size_t)64) == ncclInvalidArgument);
  CHECK(ncclAllReduce(NULL, NULL, 1, ncclFloat, ncclSum, NULL, NULL) == ncclInvalidArgument);

  Dl_info info;
  CHECK(dladdr((void*)(size_t)ncclGetVersion, &info) != 0);
  char path[4096];
  CHECK(realpath(info.dli_fname, path) != NULL);
  printf("library %s\n", path);
  return 0;
}
