#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <stdint.h>
#include <stdatomic.h>
#include <time.h>
#include <immintrin.h>
static double now(){struct timespec t;clock_gettime(CLOCK_MONOTONIC,&t);return t.tv_sec*1e6+t.tv_nsec*1e-3;}
static void pin(int c){cpu_set_t s;CPU_ZERO(&s);CPU_SET(c,&s);pthread_setaffinity_np(pthread_self(),sizeof s,&s);}
typedef struct{_Alignas(128) _Atomic uint64_t v; char pad[120];} W;
static W pub[2]; static char*slots[2],*src[2],*dst[2]; static size_t LEN,PIECE; static int FM,RM,NS; static long N;
static void nt(char*d,const char*s,size_t n){for(size_t i=0;i<n;i+=64){__m512i x=_mm512_loadu_si512(s+i);_mm512_stream_si512((void*)(d+i),x);}_mm_sfence();}
static void av(char*d,const char*s,size_t n){for(size_t i=0;i<n;i+=64)_mm512_storeu_si512(d+i,_mm512_loadu_si512(s+i));}
static void avp(char*d,const char*s,size_t n){for(size_t i=0;i<n;i+=64){_mm_prefetch(s+i+512,_MM_HINT_T0);_mm512_storeu_si512(d+i,_mm512_loadu_si512(s+i));}}
static void av4(char*d,const char*s,size_t n){for(size_t i=0;i<n;i+=256){__m512i a=_mm512_loadu_si512(s+i),b=_mm512_loadu_si512(s+i+64),c=_mm512_loadu_si512(s+i+128),e=_mm512_loadu_si512(s+i+192);_mm512_storeu_si512(d+i,a);_mm512_storeu_si512(d+i+64,b);_mm512_storeu_si512(d+i+128,c);_mm512_storeu_si512(d+i+192,e);}}
static void av2h(char*d,const char*s,size_t n){size_t h=n/2;for(size_t i=0;i<h;i+=128){__m512i a=_mm512_loadu_si512(s+i),b=_mm512_loadu_si512(s+i+64),c=_mm512_loadu_si512(s+h+i),e=_mm512_loadu_si512(s+h+i+64);_mm512_storeu_si512(d+i,a);_mm512_storeu_si512(d+i+64,b);_mm512_storeu_si512(d+h+i,c);_mm512_storeu_si512(d+h+i+64,e);}}
static void mv(char*d,const char*s,size_t n){asm volatile("rep movsb":"+D"(d),"+S"(s),"+c"(n)::"memory");}
static void mvq(char*d,const char*s,size_t n){n/=8;asm volatile("rep movsq":"+D"(d),"+S"(s),"+c"(n)::"memory");}
typedef void(*F)(char*,const char*,size_t);
static F f[]={(F)memcpy,nt,av,avp,av4,av2h,mv,mvq}; static const char*nm[]={"memcpy","nt","av","avp","av4","av2h","movsb","movsq"};
static void*run1(void*p){int me=(int)(intptr_t)p;pin(me);uint64_t k=0;F ff=f[FM],rf=f[RM];
 for(long i=0;i<N;i++){for(size_t at=0;at<LEN;at+=PIECE){ff(slots[me]+(k%NS)*PIECE,src[me]+at,PIECE);k++;atomic_store_explicit(&pub[me].v,k,memory_order_release);
  while(atomic_load_explicit(&pub[1-me].v,memory_order_acquire)<k)_mm_pause();rf(dst[me]+at,slots[1-me]+((k-1)%NS)*PIECE,PIECE);}}return 0;}
static int MODE;
static void*run2(void*p){int me=(int)(intptr_t)p;pin(me);uint64_t k=0;F ff=f[FM],rf=f[RM];
 for(long i=0;i<N;i++){char*mine=slots[(me+k)&1],*theirs=slots[(1-me+k)&1];ff(mine,src[me],LEN);k++;atomic_store_explicit(&pub[me].v,k,memory_order_release);
  while(atomic_load_explicit(&pub[1-me].v,memory_order_acquire)<k)_mm_pause();rf(dst[me],theirs,LEN);}return 0;}
int main(int c,char**v){int NSL=atoi(v[1]);for(int i=0;i<2;i++){slots[i]=aligned_alloc(1<<21,256<<20);src[i]=aligned_alloc(1<<21,8<<20);dst[i]=aligned_alloc(1<<21,8<<20);memset(slots[i],1,256<<20);memset(src[i],1,8<<20);memset(dst[i],1,8<<20);}
 

 size_t lens[]={2048,4096,8192,16384,32768,65536,131072,262144};
 for(int rep=0;rep<atoi(v[1]);rep++)for(int l=0;l<8;l++){LEN=lens[l];PIECE=LEN;
  N=LEN<20000?3000:LEN<70000?500:150;
  #define BEST(fn,a,b,ns) ({FM=a;RM=b;NS=ns;double best=1e9;for(int r=0;r<5;r++){pub[0].v=pub[1].v=0;pthread_t x,y;double t=now();pthread_create(&x,0,fn,0);pthread_create(&y,0,fn,(void*)1);pthread_join(x,0);pthread_join(y,0);t=(now()-t)/N;if(t<best)best=t;}best;})
  double s0=BEST(run1,4,4,8);
  printf("%zu state %.3f : fifo8mm %.3f fifo8ma %.3f swapmm %.3f swapma %.3f swapam %.3f swapaa %.3f end %.3f\n",LEN,s0,BEST(run1,6,6,8),BEST(run1,6,4,8),BEST(run2,6,6,2),BEST(run2,6,4,2),BEST(run2,4,6,2),BEST(run2,4,4,2),BEST(run1,4,4,8));fflush(stdout);}
}
