#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <stdint.h>
#include <stdatomic.h>
#include <x86intrin.h>
static void pin(int c){cpu_set_t s;CPU_ZERO(&s);CPU_SET(c,&s);pthread_setaffinity_np(pthread_self(),sizeof s,&s);}
static struct{_Alignas(128) _Atomic uint64_t v;char p[120];}a,b;
static char*slots,*src,*dst;static size_t LEN,SLOT=131072;static int FENCE,EVERY;static long N;static uint64_t*T;static long NT;
static inline uint64_t now(){_mm_lfence();uint64_t t=__rdtsc();_mm_lfence();return t;}
static void*prod(void*_){pin(0);NT=0;for(long i=0;i<N;i++){while(atomic_load_explicit(&b.v,memory_order_acquire)+8<=(uint64_t)i)_mm_pause();char*d=slots+(i%8)*SLOT;char*s=src+(i%16)*LEN;
 if(i%EVERY==0&&i>200){uint64_t t=now();memcpy(d,s,LEN);if(FENCE)_mm_mfence();T[NT++]=now()-t;}else memcpy(d,s,LEN);
 atomic_store_explicit(&a.v,i+1,memory_order_release);}return 0;}
static void*cons(void*_){pin(1);for(long i=0;i<N;i++){while(atomic_load_explicit(&a.v,memory_order_acquire)<=(uint64_t)i)_mm_pause();memcpy(dst+(i%16)*LEN,slots+(i%8)*SLOT,LEN);atomic_store_explicit(&b.v,i+1,memory_order_release);}return 0;}
static int cmp(const void*x,const void*y){uint64_t p=*(uint64_t*)x,q=*(uint64_t*)y;return p<q?-1:p>q;}
int main(){slots=aligned_alloc(1<<21,2<<20);src=aligned_alloc(1<<21,4<<20);dst=aligned_alloc(1<<21,4<<20);memset(slots,1,2<<20);memset(src,1,4<<20);memset(dst,1,4<<20);T=malloc(8000000);
for(LEN=2048;LEN<=65536;LEN*=2){printf("%6zu:",LEN);for(int m=0;m<4;m++){FENCE=m&1;EVERY=m&2?32:8;N=(64<<20)/LEN;if(N>20000)N=20000;a.v=b.v=0;pthread_t x,y;pthread_create(&x,0,prod,0);pthread_create(&y,0,cons,0);pthread_join(x,0);pthread_join(y,0);qsort(T,NT,8,cmp);printf("  %s/%d p10 %.1f p50 %.1f p90 %.1f",FENCE?"mfence":"plain",EVERY,T[NT/10]*64./LEN,T[NT/2]*64./LEN,T[NT*9/10]*64./LEN);}printf("\n");}}
