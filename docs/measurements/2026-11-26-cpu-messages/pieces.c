// Two threads on processors 0 and 1 exchange messages through slots. gcc -O2 -pthread pieces.c -o pieces; ./pieces P=2 W=1 N=1 2048 4096
// P slots a message, W=1 stores of 64 bytes, DI bytes asked for ahead, O=1 one way, PP lines asked for in each poll, N=1 asks for the next slot, H=1 for the position.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <immintrin.h>
#include <stdatomic.h>
#include <time.h>
#include <sys/mman.h>
typedef struct { _Alignas(128) _Atomic uint64_t tail; uint64_t header; char pad[112]; } Line;
typedef struct { _Alignas(128) _Atomic uint64_t head; char pad[120]; Line lines[8]; } Conn;
static char *mem[2];
static int HP=0,N=8, P=1, PP=0, W=0, DIST=512, ONEWAY=0, NEXT=0; static size_t STRIDE=128<<10, LEN; static long ITERS;
#define PW(p) __asm__ volatile("prefetchw %0"::"m"(*(char*)(p)))
static inline void roll(char*d,const char*s,size_t n){ size_t h=n<DIST?n:DIST; for(size_t i=0;i<h;i+=64){__builtin_prefetch(s+i);} for(size_t i=0;i<h;i+=64) PW(d+i); size_t i=0;
 for(;i+64<=n;i+=64){ if(i+DIST<n){__builtin_prefetch(s+i+DIST); PW(d+i+DIST);} for(int k=0;k<64;k+=16)_mm_storeu_si128((void*)(d+i+k),_mm_loadu_si128((void*)(s+i+k)));} if(i<n) memcpy(d+i,s+i,n-i); }
__attribute__((target("avx512f,avx512vl,avx512bw"))) static inline void roll512(char*d,const char*s,size_t n){ size_t h=n<DIST?n:DIST; for(size_t i=0;i<h;i+=64){__builtin_prefetch(s+i);} for(size_t i=0;i<h;i+=64) PW(d+i); size_t i=0;
 for(;i+64<=n;i+=64){ if(i+DIST<n){__builtin_prefetch(s+i+DIST); PW(d+i+DIST);} _mm512_storeu_si512(d+i,_mm512_loadu_si512(s+i));} if(i<n) memcpy(d+i,s+i,n-i); }
static inline void cp(char*d,const char*s,size_t n){ if(n<128) memcpy(d,s,n); else if(W==1) roll512(d,s,n); else roll(d,s,n); }
static _Atomic int ready; static double best[2];
static void* run(void*a){ int me=(int)(long)a; cpu_set_t c; CPU_ZERO(&c); CPU_SET(me,&c); pthread_setaffinity_np(pthread_self(),sizeof c,&c);
 char*src=aligned_alloc(4096,2<<20),*dst=aligned_alloc(4096,2<<20); memset(src,me+1,1<<20); memset(dst,0,1<<20);
 Conn*out=(void*)mem[me],*in=(void*)mem[1-me]; char*os=mem[me]+8192,*is=mem[1-me]+8192;
 uint64_t s=0,r=0,seen=0; best[me]=1e9;
 for(int round=0;round<16;round++){ atomic_fetch_add(&ready,1); while(atomic_load(&ready)<2*(round+1)) _mm_pause();
  struct timespec t0,t1; clock_gettime(CLOCK_MONOTONIC,&t0);
  for(long i=0;i<ITERS;i++){ int inl = LEN<=112; size_t piece=(LEN/P+63)/64*64; if(inl) piece=LEN;
   if(!ONEWAY||me==0) for(size_t at=0;at<LEN;at+=piece){ size_t n=LEN-at<piece?LEN-at:piece;
    while(seen+N<=s){ seen=atomic_load_explicit(&out->head,memory_order_acquire); if(seen+N<=s)_mm_pause(); }
    Line*l=&out->lines[s%8]; cp(inl?l->pad:os+(s%N)*STRIDE,src+at,n); l->header=7; atomic_store_explicit(&l->tail,s+1,memory_order_release); s++; }
   if(HP&&seen+N<=s+P) __builtin_prefetch((char*)&out->head); if(NEXT&&!inl) for(size_t i=0;i<512&&i<piece;i+=64) PW(os+(s%N)*STRIDE+i);
   if(!ONEWAY||me==1) for(size_t at=0;at<LEN;at+=piece){ size_t n=LEN-at<piece?LEN-at:piece;
    Line*l=&in->lines[r%8]; char*p=inl?l->pad:is+(r%N)*STRIDE;
    while(atomic_load_explicit(&l->tail,memory_order_acquire)!=r+1){ if(PP==1){ if(inl){ if(n>48)__builtin_prefetch((char*)l+64);} else __builtin_prefetch(p);} else if(PP>1){ for(size_t k=0;k<PP*64&&k<n;k+=64) __builtin_prefetch(p+k);} _mm_pause(); }
    if(l->header!=7) abort(); cp(dst+at,p,n); r++; atomic_store_explicit(&in->head,r,memory_order_release); }
  }
  clock_gettime(CLOCK_MONOTONIC,&t1); double us=((t1.tv_sec-t0.tv_sec)*1e9+t1.tv_nsec-t0.tv_nsec)/1e3/ITERS; if(round&&us<best[me])best[me]=us; }
 return 0; }
int main(int c,char**v){ int k=1; for(;k<c&&strchr(v[k],'=');k++){ int x=atoi(strchr(v[k],'=')+1); switch(v[k][0]){case 'P':if(v[k][1]=='P')PP=x;else P=x;break;case 'W':W=x;break;case 'D':DIST=x;break;case 'O':ONEWAY=x;break;case 'N':NEXT=x;break;case 'H':HP=x;break;} }
 for(int i=0;i<2;i++){ mem[i]=mmap(0,4<<20,PROT_READ|PROT_WRITE,MAP_SHARED|MAP_ANONYMOUS,-1,0); }
 printf("P%d PP%d W%d D%d O%d N%d:",P,PP,W,DIST,ONEWAY,NEXT);
 for(;k<c;k++){ LEN=atol(v[k]); ITERS=LEN>8192?4000:20000; for(int i=0;i<2;i++) memset(mem[i],0,4<<20); ready=0;
  pthread_t t[2]; for(long i=0;i<2;i++) pthread_create(t+i,0,run,(void*)i); for(int i=0;i<2;i++) pthread_join(t[i],0);
  printf("  %zu: %.3f",LEN,best[0]>best[1]?best[0]:best[1]); fflush(stdout);} puts(""); }
