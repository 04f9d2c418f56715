/* Calls every function with null, with garbage and with what is of another kind. */
#include "nccl.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int refused, wrong;

/* A refusal with a text, of the kinds that an argument can be blamed with. */
static void refuse(ncclResult_t code, const char* call, int line) {
  const char* text = ncclGetLastError(NULL);
  if ((code == ncclInvalidArgument || code == ncclInvalidUsage) && text != NULL && strlen(text) > 12) {
    refused++;
    return;
  }
  fprintf(stderr, "line %d: %s returned %d (%s)\n", line, call, code, text == NULL ? "(null)" : text);
  wrong++;
}

#define REFUSE(call) refuse(call, #call, __LINE__)

static void with_comm(ncclComm_t comm) {
  float memory[64] = {0};
  int number = 0;
  ncclRedOp_t op;
  ncclResult_t code;
  ncclComm_t child;
  cudaStream_t stream = NULL;
  REFUSE(ncclCommCount(comm, &number));
  REFUSE(ncclCommCuDevice(comm, &number));
  REFUSE(ncclCommUserRank(comm, &number));
  REFUSE(ncclCommGetAsyncError(comm, &code));
  REFUSE(ncclCommFinalize(comm));
  REFUSE(ncclCommSplit(comm, 0, 0, &child, NULL));
  REFUSE(ncclRedOpCreatePreMulSum(&op, memory, ncclFloat32, ncclScalarHostImmediate, comm));
  REFUSE(ncclRedOpDestroy(ncclSum, comm));
  REFUSE(ncclAllReduce(memory, memory, 4, ncclFloat32, ncclSum, comm, stream));
  REFUSE(ncclReduce(memory, memory, 4, ncclFloat32, ncclSum, 0, comm, stream));
  REFUSE(ncclReduceScatter(memory, memory, 4, ncclFloat32, ncclSum, comm, stream));
  REFUSE(ncclBroadcast(memory, memory, 4, ncclFloat32, 0, comm, stream));
  REFUSE(ncclBcast(memory, 4, ncclFloat32, 0, comm, stream));
  REFUSE(ncclAllGather(memory, memory, 4, ncclFloat32, comm, stream));
  REFUSE(ncclAlltoAll(memory, memory, 4, ncclFloat32, comm, stream));
  REFUSE(ncclGather(memory, memory, 4, ncclFloat32, 0, comm, stream));
  REFUSE(ncclScatter(memory, memory, 4, ncclFloat32, 0, comm, stream));
  REFUSE(ncclSend(memory, 4, ncclFloat32, 0, comm, stream));
  REFUSE(ncclRecv(memory, 4, ncclFloat32, 0, comm, stream));
  if (comm != NULL) {
    REFUSE(ncclCommDestroy(comm));
    REFUSE(ncclCommAbort(comm));
  }
  if (ncclGetLastError(comm) == NULL) {
    wrong++;
  }
}

static void with_config(void* config) {
  ncclComm_t comm;
  ncclUniqueId id;
  memset(&id, 0, sizeof id);
  REFUSE(ncclCommInitRankConfig(&comm, 1, id, 0, (ncclConfig_t*)config));
  if (comm != NULL) {
    wrong++;
  }
}

static void creation(void) {
  ncclComm_t comm;
  ncclUniqueId zero;
  memset(&zero, 0, sizeof zero);
  REFUSE(ncclCommInitRank(NULL, 1, zero, 0));
  REFUSE(ncclCommInitRank(&comm, 1, zero, 0));
  REFUSE(ncclCommInitRank(&comm, 0, zero, 0));
  REFUSE(ncclCommInitRank(&comm, -1, zero, 0));
  REFUSE(ncclCommInitRank(&comm, 2, zero, 2));
  REFUSE(ncclCommInitRank(&comm, 2, zero, -1));
  REFUSE(ncclCommInitRankScalable(&comm, 2, 0, 0, &zero, NULL));
  REFUSE(ncclCommInitRankScalable(&comm, 2, 0, 1, NULL, NULL));
  REFUSE(ncclCommInitRankScalable(&comm, 2, 0, 3, &zero, NULL));
  REFUSE(ncclCommInitAll(NULL, 1, NULL));
  REFUSE(ncclGetUniqueId(NULL));
  REFUSE(ncclGetVersion(NULL));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.magic = 1;
  with_config(&config);
  ncclConfig_t sized = NCCL_CONFIG_INITIALIZER;
  sized.size = 4;
  with_config(&sized);
  ncclConfig_t wild = NCCL_CONFIG_INITIALIZER;
  wild.blocking = 17;
  with_config(&wild);
  unsigned char noise[256];
  memset(noise, 0xa5, sizeof noise);
  with_config(noise);
}

static void groups(void) {
  float memory[4] = {0};
  REFUSE(ncclGroupEnd());
  /* A refused call makes its group's end a refusal. */
  if (ncclGroupStart() != ncclSuccess || ncclGroupStart() != ncclSuccess) {
    wrong++;
  }
  REFUSE(ncclAllReduce(memory, memory, 4, ncclFloat32, ncclSum, NULL, NULL));
  if (ncclGroupEnd() != ncclSuccess) {
    wrong++;
  }
  REFUSE(ncclGroupEnd());
  REFUSE(ncclGroupEnd());
  if (ncclGroupStart() != ncclSuccess || ncclGroupEnd() != ncclSuccess) {
    wrong++;
  }
}

int main(void) {
  int version = 0, code;
  if (ncclGetVersion(&version) != ncclSuccess || version != NCCL_VERSION_CODE) {
    wrong++;
  }
  for (code = -1000; code < 1000; code++) {
    if (strlen(ncclGetErrorString((ncclResult_t)code)) == 0) {
      wrong++;
    }
  }
  with_comm(NULL);
  with_comm((ncclComm_t)(uintptr_t)1);
  with_comm((ncclComm_t)(uintptr_t)0x123456789abcdef0u);
  with_comm((ncclComm_t)(uintptr_t)UINTPTR_MAX);
  void* other = malloc(4096);
  volatile uintptr_t freed = (uintptr_t)other;
  with_comm((ncclComm_t)other);
  free(other);
  with_comm((ncclComm_t)freed);
  creation();
  groups();
  if (ncclCommDestroy(NULL) != ncclSuccess || ncclCommAbort(NULL) != ncclSuccess) {
    wrong++;
  }
  printf("%d refused, %d wrong\n", refused, wrong);
  if (wrong == 0) {
    printf("every call was refused\n");
  }
  return wrong != 0;
}
