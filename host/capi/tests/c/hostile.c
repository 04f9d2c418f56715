/* Calls every function with null, with garbage and with what is of another kind. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "nccl.h"
#include <dlfcn.h>
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
  /* A null communicator is no error, as in NCCL. */
  if (comm == NULL && (ncclCommFinalize(NULL) != ncclSuccess || ncclCommRevoke(NULL, NCCL_REVOKE_DEFAULT) != ncclSuccess)) wrong++;
  if (comm != NULL) REFUSE(ncclCommFinalize(comm));
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
  int excluded[1] = {0};
  ncclUniqueId id;
  void* handle = NULL;
  ncclWindow_t window = NULL;
  uint64_t stat;
  ncclWaitSignalDesc_t wait = {1, 0, 0, 0};
  ncclCollConfig_t config = NCCL_COLLCONFIG_INITIALIZER;
  REFUSE(ncclCommShrink(comm, excluded, 1, &child, NULL, NCCL_SHRINK_DEFAULT));
  REFUSE(ncclCommGetUniqueId(comm, &id));
  REFUSE(ncclCommGrow(comm, 2, NULL, -1, &child, NULL));
  if (comm != NULL) REFUSE(ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT));
  REFUSE(ncclCommSuspend(comm, NCCL_SUSPEND_MEM));
  REFUSE(ncclCommResume(comm));
  REFUSE(ncclCommMemStats(comm, ncclStatGpuMemTotal, &stat));
  REFUSE(ncclCommRegister(comm, memory, sizeof memory, &handle));
  REFUSE(ncclCommDeregister(comm, memory));
  REFUSE(ncclCommWindowRegister(comm, memory, sizeof memory, &window, NCCL_WIN_DEFAULT));
  REFUSE(ncclCommWindowDeregister(comm, (ncclWindow_t)(void*)memory));
  REFUSE(ncclWinGetUserPtr(comm, window, &handle));
  REFUSE(ncclPutSignal(memory, 4, ncclFloat32, 0, window, 0, 0, 0, 0, comm, stream));
  REFUSE(ncclSignal(0, 0, 0, 0, comm, stream));
  REFUSE(ncclWaitSignal(1, &wait, comm, stream));
  REFUSE(ncclAllReduceConfig(memory, memory, 4, ncclFloat32, ncclSum, comm, stream, &config));
  REFUSE(ncclBroadcastConfig(memory, memory, 4, ncclFloat32, 0, comm, stream, &config));
  REFUSE(ncclReduceConfig(memory, memory, 4, ncclFloat32, ncclSum, 0, comm, stream, &config));
  REFUSE(ncclAllGatherConfig(memory, memory, 4, ncclFloat32, comm, stream, &config));
  REFUSE(ncclReduceScatterConfig(memory, memory, 4, ncclFloat32, ncclSum, comm, stream, &config));
  REFUSE(ncclAlltoAllConfig(memory, memory, 4, ncclFloat32, comm, stream, &config));
  REFUSE(ncclGatherConfig(memory, memory, 4, ncclFloat32, 0, comm, stream, NULL));
  REFUSE(ncclScatterConfig(memory, memory, 4, ncclFloat32, 0, comm, stream, NULL));
  config.magic = 7;
  REFUSE(ncclAllReduceConfig(memory, memory, 4, ncclFloat32, ncclSum, comm, stream, &config));
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

/* What is for kernels that communicate by themselves is refused whatever is passed. */
typedef ncclResult_t (*device_function)(void*, void*, void*, void*);

static void device_interface(void) {
  static const char* const names[] = {
      "ncclDevCommCreate", "ncclDevCommDestroy", "ncclGetCftDeviceLeInfo", "ncclGetLsaDevicePointer",
      "ncclGetLsaMultimemDevicePointer", "ncclGetMultimemDeviceLeInfo", "ncclGetMultimemDevicePointer",
      "ncclGetPeerDeviceLeInfo", "ncclGetPeerDevicePointer", "ncclGinBarrierCreateRequirement",
      "ncclGinInboxA2ACreateRequirement", "ncclGinOutboxCreateRequirement", "ncclLLA2ACreateRequirement",
      "ncclLsaBarrierCreateRequirement", "ncclCommQueryProperties"};
  size_t at;
  for (at = 0; at < sizeof names / sizeof names[0]; at++) {
    device_function function;
    *(void**)&function = dlsym(RTLD_DEFAULT, names[at]);
    char memory[512];
    memset(memory, 0xa5, sizeof memory);
    refuse(function(NULL, NULL, NULL, NULL), names[at], __LINE__);
    refuse(function(memory, memory, memory, memory), names[at], __LINE__);
  }
}

static void parameters(void) {
  ncclParamHandle_t handle = NULL;
  const char* text = NULL;
  const char** table = NULL;
  int len = 0;
  char bytes[64];
  int8_t i8;
  int16_t i16;
  int32_t i32;
  int64_t i64;
  uint8_t u8;
  uint16_t u16;
  uint32_t u32;
  uint64_t u64;
  ncclParamHandle_t wrong_ones[] = {NULL, (ncclParamHandle_t)(void*)bytes, (ncclParamHandle_t)(uintptr_t)1};
  size_t at;
  for (at = 0; at < 3; at++) {
    ncclParamHandle_t one = wrong_ones[at];
    REFUSE(ncclParamGetI8(one, &i8));
    REFUSE(ncclParamGetI16(one, &i16));
    REFUSE(ncclParamGetI32(one, &i32));
    REFUSE(ncclParamGetI64(one, &i64));
    REFUSE(ncclParamGetU8(one, &u8));
    REFUSE(ncclParamGetU16(one, &u16));
    REFUSE(ncclParamGetU32(one, &u32));
    REFUSE(ncclParamGetU64(one, &u64));
    REFUSE(ncclParamGetStr(one, &text));
    REFUSE(ncclParamGet(one, bytes, sizeof bytes, &len));
  }
  REFUSE(ncclParamBind(NULL, "NCCL_ALGO"));
  REFUSE(ncclParamBind(&handle, NULL));
  REFUSE(ncclParamBind(&handle, "NCCL_NO_SUCH_THING"));
  REFUSE(ncclParamGetParameter(NULL, &text, &len));
  REFUSE(ncclParamGetParameter("NCCL_ALGO", NULL, &len));
  REFUSE(ncclParamGetAllParameterKeys(NULL, &len));
  REFUSE(ncclParamGetAllParameterKeys(&table, NULL));
  if (ncclParamBind(&handle, "NCCL_SHM_DISABLE") != ncclSuccess || ncclParamGetI32(handle, &i32) != ncclSuccess || i32 != 0) {
    wrong++;
  }
  REFUSE(ncclParamGet(handle, bytes, 1, &len));
  if (ncclParamGet(handle, bytes, sizeof bytes, &len) != ncclSuccess || len != 2 || strcmp(bytes, "0") != 0) {
    wrong++;
  }
  REFUSE(ncclParamGetI32(handle, NULL));
  if (ncclParamBind(&handle, "OXCCL_TIMEOUT") != ncclSuccess || ncclParamGetI64(handle, &i64) != ncclSuccess) {
    wrong++;
  }
  REFUSE(ncclParamGetI8(handle, &i8));
  if (ncclParamGetAllParameterKeys(&table, &len) != ncclSuccess || len < 20) {
    wrong++;
  } else {
    for (at = 0; at < (size_t)len; at++) {
      int value_len;
      if (ncclParamGetParameter(table[at], &text, &value_len) != ncclSuccess || (int)strlen(text) != value_len) {
        wrong++;
      }
    }
  }
  ncclParamDumpAll();
}

static void others(void) {
  void* memory = NULL;
  char local[16];
  REFUSE(ncclMemAlloc(NULL, 16));
  REFUSE(ncclMemAlloc(&memory, SIZE_MAX));
  REFUSE(ncclMemFree(local));
  if (ncclMemFree(NULL) != ncclSuccess || ncclMemAlloc(&memory, 0) != ncclSuccess || memory != NULL) {
    wrong++;
  }
  ncclEncryptionConfig_t encryption = NCCL_ENCRYPTION_CONFIG_INITIALIZER;
  if (ncclSetEncryption(&encryption) != ncclSuccess) {
    wrong++;
  }
  encryption.mode = NCCL_ENCRYPTION_MODE_PSK;
  REFUSE(ncclSetEncryption(&encryption));
  encryption.psk = "";
  REFUSE(ncclSetEncryption(&encryption));
  encryption.psk = "a key";
  if (ncclSetEncryption(&encryption) != ncclSuccess) {
    wrong++;
  }
  encryption.mode = NCCL_ENCRYPTION_MODE_NONE;
  if (ncclSetEncryption(&encryption) != ncclSuccess) {
    wrong++;
  }
  encryption.mode = 9;
  REFUSE(ncclSetEncryption(&encryption));
  encryption.magic = 9;
  REFUSE(ncclSetEncryption(&encryption));
  REFUSE(ncclSetEncryption(NULL));
  ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
  REFUSE(ncclGroupSimulateEnd(&info));
  if (ncclGroupStart() != ncclSuccess || ncclGroupSimulateEnd(&info) != ncclSuccess || info.estimatedTime != 0.0f) {
    wrong++;
  }
  info.magic = 3;
  if (ncclGroupStart() != ncclSuccess) {
    wrong++;
  }
  REFUSE(ncclGroupSimulateEnd(&info));
  ncclResetDebugInit();
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
  device_interface();
  parameters();
  others();
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
