/* What NCCL's header needs of CUDA's runtime. */
#pragma once
#include <stddef.h>
#define CUDART_VERSION 13000
typedef struct CUstream_st* cudaStream_t;
typedef struct CUevent_st* cudaEvent_t;
