// Two threads exchange messages through slots as OxCCL does; ways of storing, loading, placing.
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
static char *mem[2]; // conn d: from d to 1-d
static int SP=1; static int N=8; static size_t STRIDE=128<<10; static size_t LEN; static int W, R, ONEWAY; static long ITERS; static int DEM;
static inline void movsb(void*d,const void*s,size_t n){ __asm__ volatile("rep movsb":"+D"(d),"+S"(s),"+c"(n)::"memory"); }
__attribute__((target("avx512f"))) static void v512(char*d,const char*s,size_t n){ size_t i=0; for(;i+64<=n;i+=64) _mm512_storeu_si512(d+i,_mm512_loadu_si512(s+i)); for(;i<n;i++) d[i]=s[i]; }
__attribute__((target("avx2"))) static void v256(char*d,const char*s,size_t n){ for(size_t i=0;i+32<=n;i+=32) _mm256_storeu_si256((void*)(d+i),_mm256_loadu_si256((void*)(s+i))); }
static void nt(char*d,const char*s,size_t n){ for(size_t i=0;i+16<=n;i+=16) _mm_stream_si128((void*)(d+i),_mm_loadu_si128((void*)(s+i))); _mm_sfence(); }
static inline void pfw(char*p,size_t n){ for(size_t i=0;i<n;i+=64) __asm__ volatile("prefetchw %0"::"m"(p[i])); }
static inline void pfr(const char*p,size_t n){ for(size_t i=0;i<n;i+=64) __builtin_prefetch(p+i,0,3); }
static inline void demote(char*p,size_t n){ for(size_t i=0;i<n;i+=64) __asm__ volatile("cldemote %0"::"m"(p[i])); }
__attribute__((target("movdir64b"))) static void md64(char*d,const char*s,size_t n){ for(size_t i=0;i+64<=n;i+=64) _movdir64b(d+i,s+i); _mm_sfence(); }
__attribute__((target("avx512f"))) static void v512pf(char*d,const char*s,size_t n){ pfw(d,n<1024?n:1024); size_t i=0; for(;i+64<=n;i+=64){ if(i+1024<n)__asm__ volatile("prefetchw %0"::"m"(d[i+1024])); _mm512_storeu_si512(d+i,_mm512_loadu_si512(s+i));} }
static int DIST=1024, NEXT=0;
__attribute__((target("avx512f"))) static void roll512(char*d,const char*s,size_t n){ pfw(d,n<DIST?n:DIST); size_t i=0; for(;i+64<=n;i+=64){ if(i+DIST<n)__asm__ volatile("prefetchw %0"::"m"(d[i+DIST])); _mm512_storeu_si512(d+i,_mm512_loadu_si512(s+i));} }
__attribute__((target("avx2"))) static void roll256(char*d,const char*s,size_t n){ pfw(d,n<DIST?n:DIST); size_t i=0; for(;i+64<=n;i+=64){ if(i+DIST<n)__asm__ volatile("prefetchw %0"::"m"(d[i+DIST])); _mm256_storeu_si256((void*)(d+i),_mm256_loadu_si256((void*)(s+i)));_mm256_storeu_si256((void*)(d+i+32),_mm256_loadu_si256((void*)(s+i+32)));} }
static void roll128(char*d,const char*s,size_t n){ pfw(d,n<DIST?n:DIST); size_t i=0; for(;i+64<=n;i+=64){ if(i+DIST<n)__asm__ volatile("prefetchw %0"::"m"(d[i+DIST])); for(int k=0;k<64;k+=16)_mm_storeu_si128((void*)(d+i+k),_mm_loadu_si128((void*)(s+i+k)));} }
static void pieces(char*d,const char*s,size_t n){ size_t i=0; pfw(d,n<DIST?n:DIST); for(;i<n;i+=DIST){ size_t k=n-i<DIST?n-i:DIST; if(i+k<n){size_t m=n-i-k; pfw(d+i+k,m<DIST?m:DIST);} memcpy(d+i,s+i,k);} }
static void both(char*d,const char*s,size_t n); static void pfx(const char*p,size_t n,int h);
static void wr(char*d,const char*s,size_t n){ switch(W){
 case 0: memcpy(d,s,n);break; case 1: movsb(d,s,n);break; case 2: pfw(d,n); memcpy(d,s,n);break; case 3: v512(d,s,n);break; case 4: nt(d,s,n);break; case 5: md64(d,s,n);break; case 6: v256(d,s,n);break; case 7: v512pf(d,s,n);break; case 41: pfx(d,n,1);both(d,s,n);break; case 42: pfw(d,n); v512(d,s,n); break; case 43: for(size_t i=0;i<n;i+=64)*(volatile char*)(d+i)=1; v512(d,s,n); break; case 13: both(d,s,n);break; case 9: roll512(d,s,n);break; case 10: roll256(d,s,n);break; case 11: roll128(d,s,n);break; case 12: pieces(d,s,n);break; case 8: pfw(d,n); movsb(d,s,n); break;}
 if(DEM&1) demote(d,n); }
static void l128(char*d,const char*s,size_t n){ size_t i=0; for(;i+64<=n;i+=64){ for(int k=0;k<64;k+=16)_mm_storeu_si128((void*)(d+i+k),_mm_loadu_si128((void*)(s+i+k)));} }
static void l128p(char*d,const char*s,size_t n){ pfr(s,n<DIST?n:DIST);size_t i=0; for(;i+64<=n;i+=64){ if(i+DIST<n)__builtin_prefetch(s+i+DIST); for(int k=0;k<64;k+=16)_mm_storeu_si128((void*)(d+i+k),_mm_loadu_si128((void*)(s+i+k)));} }
static void l128w(char*d,const char*s,size_t n){ pfw((char*)s,n<DIST?n:DIST);size_t i=0; for(;i+64<=n;i+=64){ if(i+DIST<n)__asm__ volatile("prefetchw %0"::"m"(s[i+DIST])); for(int k=0;k<64;k+=16)_mm_storeu_si128((void*)(d+i+k),_mm_loadu_si128((void*)(s+i+k)));} }
static void both(char*d,const char*s,size_t n){ size_t h=n<DIST?n:DIST; for(size_t i=0;i<h;i+=64){__builtin_prefetch(s+i); __asm__ volatile("prefetchw %0"::"m"(d[i]));} size_t i=0; for(;i+64<=n;i+=64){ if(i+DIST<n){__builtin_prefetch(s+i+DIST); __asm__ volatile("prefetchw %0"::"m"(d[i+DIST]));} for(int k=0;k<64;k+=16)_mm_storeu_si128((void*)(d+i+k),_mm_loadu_si128((void*)(s+i+k)));} }
static void pfx(const char*p,size_t n,int h){ for(size_t i=0;i<n;i+=64) switch(h){case 1:__builtin_prefetch(p+i,0,2);break;case 2:__builtin_prefetch(p+i,0,1);break;case 3:__builtin_prefetch(p+i,0,0);break;} }
static char*OWN; static int PF;
__attribute__((target("avx512f"))) static void add512(char*d,const char*s,size_t n){ pfr(s,n<PF?n:PF); size_t i=0; for(;i+64<=n;i+=64) _mm512_storeu_ps((float*)(d+i),_mm512_add_ps(_mm512_loadu_ps((float*)(s+i)),_mm512_loadu_ps((float*)(OWN+i)))); }
__attribute__((target("avx512f"))) static void add512r(char*d,const char*s,size_t n){ pfr(s,n<PF?n:PF); size_t i=0; for(;i+64<=n;i+=64) {__builtin_prefetch(s+i+PF); _mm512_storeu_ps((float*)(d+i),_mm512_add_ps(_mm512_loadu_ps((float*)(s+i)),_mm512_loadu_ps((float*)(OWN+i)))); }}
__attribute__((target("avx2"))) static void add256(char*d,const char*s,size_t n){ pfr(s,n<PF?n:PF); size_t i=0; for(;i+32<=n;i+=32) _mm256_storeu_ps((float*)(d+i),_mm256_add_ps(_mm256_loadu_ps((float*)(s+i)),_mm256_loadu_ps((float*)(OWN+i)))); }
static void rd(char*d,const char*s,size_t n){ switch(R){ case 0: memcpy(d,s,n);break; case 1: movsb(d,s,n);break; case 2: pfr(s,n); memcpy(d,s,n);break; case 3: v512(d,s,n);break; case 8: both(d,s,n);break; case 31: pfx(s,n,1);v512(d,s,n);break; case 32: pfx(s,n,2);v512(d,s,n);break; case 33: pfx(s,n,3);v512(d,s,n);break; case 34: pfx(s,n,1);both(d,s,n);break; case 20: add512(d,s,n);break; case 21: add512r(d,s,n);break; case 22: add256(d,s,n);break; case 5: l128(d,s,n);break; case 6: l128p(d,s,n);break; case 7: l128w(d,s,n);break; case 4: pfr(s,n); movsb(d,s,n); break;}
 if(DEM&2) demote((char*)s,n); }
static _Atomic int ready; static double best[2];
static void* run(void*a){ int me=(int)(long)a; cpu_set_t c; CPU_ZERO(&c); CPU_SET(me,&c); pthread_setaffinity_np(pthread_self(),sizeof c,&c);
 char*src=aligned_alloc(4096,2<<20),*dst=aligned_alloc(4096,2<<20); if(getenv("SOFF")){src+=atoi(getenv("SOFF"));dst+=atoi(getenv("DOFF"));} memset(src,me+1,1<<20); memset(dst,0,1<<20);
 Conn*out=(void*)mem[me],*in=(void*)mem[1-me]; char*os=mem[me]+8192,*is=mem[1-me]+8192;
 uint64_t s=0,r=0,seen=0; best[me]=1e9;
 for(int round=0;round<12;round++){ atomic_fetch_add(&ready,1); while(atomic_load(&ready)<2*(round+1)) _mm_pause();
  struct timespec t0,t1; clock_gettime(CLOCK_MONOTONIC,&t0);
  for(long i=0;i<ITERS;i++){
   if(!ONEWAY||me==0){ while(seen+N<=s){ seen=atomic_load_explicit(&out->head,memory_order_acquire); if(seen+N<=s)_mm_pause(); }
    wr(os+(s%N)*STRIDE+((s/8)%SP)*((LEN+4095)/4096*4096),src,LEN); Line*l=&out->lines[s%8]; l->header=7; atomic_store_explicit(&l->tail,s+1,memory_order_release); s++; if(NEXT){ char*p=os+(s%N)*STRIDE; pfw(p,LEN<NEXT?LEN:NEXT);} }
   if(!ONEWAY||me==1){ Line*l=&in->lines[r%8]; while(atomic_load_explicit(&l->tail,memory_order_acquire)!=r+1)_mm_pause();
    if(l->header!=7) abort(); rd(dst,is+(r%N)*STRIDE+((r/8)%SP)*((LEN+4095)/4096*4096),LEN); r++; atomic_store_explicit(&in->head,r,memory_order_release); }
  }
  clock_gettime(CLOCK_MONOTONIC,&t1); double us=((t1.tv_sec-t0.tv_sec)*1e9+t1.tv_nsec-t0.tv_nsec)/1e3/ITERS; if(round&&us<best[me])best[me]=us; }
 return 0; }
int main(int c,char**v){ // slots LEN... options W R N STRIDE ONEWAY DEM
 OWN=aligned_alloc(4096,1<<20); if(getenv("PF"))PF=atoi(getenv("PF")); if(getenv("SP"))SP=atoi(getenv("SP")); if(getenv("DIST"))DIST=atoi(getenv("DIST")); if(getenv("NEXT"))NEXT=atoi(getenv("NEXT")); printf("D%d X%d ",DIST,NEXT); W=atoi(v[1]);R=atoi(v[2]);N=atoi(v[3]);STRIDE=atol(v[4]);ONEWAY=atoi(v[5]);DEM=atoi(v[6]);
 for(int i=0;i<2;i++){ mem[i]=mmap(0,4<<20,PROT_READ|PROT_WRITE,MAP_SHARED|MAP_ANONYMOUS,-1,0); }
 printf("W%d R%d N%d stride %zu oneway %d dem %d:",W,R,N,STRIDE,ONEWAY,DEM);
 for(int k=7;k<c;k++){ LEN=atol(v[k]); ITERS=20000; if(LEN>8192)ITERS=4000; for(int i=0;i<2;i++) memset(mem[i],0,4<<20); ready=0;
  pthread_t t[2]; for(long i=0;i<2;i++) pthread_create(t+i,0,run,(void*)i); for(int i=0;i<2;i++) pthread_join(t[i],0);
  printf("  %zu: %.2f",LEN,best[0]>best[1]?best[0]:best[1]); fflush(stdout);} puts(""); }
