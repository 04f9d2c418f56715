#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <stdatomic.h>
#include <immintrin.h>
#include <time.h>
#include <sys/mman.h>
static double now(){struct timespec t;clock_gettime(CLOCK_MONOTONIC,&t);return t.tv_sec*1e6+t.tv_nsec*1e-3;}
typedef struct{_Alignas(128) _Atomic unsigned long v; char pad[120];}line;
static line full[2], empty_[2], bar[2];
static char*src[2],*dst[2],*slots[2];
static size_t N,P,SLOTBYTES=16<<20; static int K,mode,nslots;
static void cp_plain(char*d,const char*s,size_t n){for(size_t i=0;i<n;i+=256){__m512i a=_mm512_loadu_si512(s+i),b=_mm512_loadu_si512(s+i+64),c=_mm512_loadu_si512(s+i+128),e=_mm512_loadu_si512(s+i+192);_mm512_storeu_si512(d+i,a);_mm512_storeu_si512(d+i+64,b);_mm512_storeu_si512(d+i+128,c);_mm512_storeu_si512(d+i+192,e);}}
static void cp_avx2(char*d,const char*s,size_t n){for(size_t i=0;i<n;i+=128){__m256i a=_mm256_loadu_si256((void*)(s+i)),b=_mm256_loadu_si256((void*)(s+i+32)),c=_mm256_loadu_si256((void*)(s+i+64)),e=_mm256_loadu_si256((void*)(s+i+96));_mm256_storeu_si256((void*)(d+i),a);_mm256_storeu_si256((void*)(d+i+32),b);_mm256_storeu_si256((void*)(d+i+64),c);_mm256_storeu_si256((void*)(d+i+96),e);}}
static void cp_nt(char*d,const char*s,size_t n){for(size_t i=0;i<n;i+=128){__m256i a=_mm256_loadu_si256((void*)(s+i)),b=_mm256_loadu_si256((void*)(s+i+32)),c=_mm256_loadu_si256((void*)(s+i+64)),e=_mm256_loadu_si256((void*)(s+i+96));_mm256_stream_si256((void*)(d+i),a);_mm256_stream_si256((void*)(d+i+32),b);_mm256_stream_si256((void*)(d+i+64),c);_mm256_stream_si256((void*)(d+i+96),e);}_mm_sfence();}
static void cp_rep(char*d,const char*s,size_t n){asm volatile("rep movsb":"+D"(d),"+S"(s),"+c"(n)::"memory");}
static void cp_mem(char*d,const char*s,size_t n){memcpy(d,s,n);}
// prefetch ahead copy: prefetch src at distance
static void cp_pf(char*d,const char*s,size_t n){for(size_t i=0;i<n;i+=256){for(int k=0;k<256;k+=64)_mm_prefetch(s+i+k+1024,_MM_HINT_T0);for(int k=0;k<256;k+=64)__builtin_prefetch(d+i+k+1024,1,3);__m512i a=_mm512_loadu_si512(s+i),b=_mm512_loadu_si512(s+i+64),c=_mm512_loadu_si512(s+i+128),e=_mm512_loadu_si512(s+i+192);_mm512_storeu_si512(d+i,a);_mm512_storeu_si512(d+i+64,b);_mm512_storeu_si512(d+i+128,c);_mm512_storeu_si512(d+i+192,e);}}
typedef void(*cp)(char*,const char*,size_t);
static cp CP[]={cp_plain,cp_avx2,cp_nt,cp_rep,cp_mem,cp_pf}; static const char*NM[]={"z","avx2","nt","rep","mem","pf"};
static cp cin,cout_;
static void pin(int c){cpu_set_t s;CPU_ZERO(&s);CPU_SET(c,&s);pthread_setaffinity_np(pthread_self(),sizeof s,&s);}
static unsigned long sent[2],got[2];
static char*slotp(int owner,unsigned long i){return slots[owner]+(i%nslots)*P;}
// mode 0: slots of connection me->peer: ring of K slots. mode 1: ping-pong: buffers swap: piece j uses buffer (owner alternates by operation)
static unsigned long opn[2];
static void exchange(int me){int o=1-me;size_t np=N/P;size_t s=0,r=0;
  if(mode==0){ // ring of K slots
   while(s<np||r<np){
    if(s<np && sent[me]-atomic_load_explicit(&empty_[me].v,memory_order_acquire)<(unsigned)K){cout_(slotp(me,sent[me]),src[me]+s*P,P);sent[me]++;atomic_store_explicit(&full[me].v,sent[me],memory_order_release);s++;}
    if(r<np && atomic_load_explicit(&full[o].v,memory_order_acquire)>got[me]){cin(dst[me]+r*P,slotp(o,got[me]),P);got[me]++;atomic_store_explicit(&empty_[o].v,got[me],memory_order_release);r++;}
   }}
  else { // hand over: exchange i: I fill buffer H[i&1 ^ me] and peer fills the other one; after, buffers change owner. K buffer pairs in turn
   while(s<np||r<np){
    if(s<np && s-r<(size_t)K){ unsigned long i=sent[me]; unsigned long round=i/K,w=i%K; int buf=(me^(round&1)); cout_(slots[buf]+w*P,src[me]+s*P,P);sent[me]++;atomic_store_explicit(&full[me].v,sent[me],memory_order_release);s++;}
    if(r<np && (s==np|| s-r>=(size_t)1) && atomic_load_explicit(&full[o].v,memory_order_acquire)>got[me]){unsigned long i=got[me];unsigned long round=i/K,w=i%K;int buf=(o^(round&1));cin(dst[me]+r*P,slots[buf]+w*P,P);got[me]++;r++;}
   }}
}
static int iters; static double res[64];
static void barrier(int me){static _Thread_local unsigned long n; n++; atomic_store(&bar[me].v,n); while(atomic_load(&bar[1-me].v)<n);}
static void*run(void*a){int me=(long)a;pin(me);
 static _Thread_local int dummy;(void)dummy;
 for(int t=0;t<9;t++){barrier(me);double b=now();for(int i=0;i<iters;i++)exchange(me);double e=now();if(me==0)res[t]=(e-b)/iters;barrier(me);}return 0;}
static int cmp(const void*a,const void*b){double x=*(double*)a-*(double*)b;return x<0?-1:x>0;}
int main(int c,char**v){
 for(int i=0;i<2;i++){src[i]=mmap(0,16<<20,3,MAP_PRIVATE|MAP_ANONYMOUS,-1,0);dst[i]=mmap(0,16<<20,3,MAP_PRIVATE|MAP_ANONYMOUS,-1,0);slots[i]=mmap(0,SLOTBYTES,3,MAP_SHARED|MAP_ANONYMOUS,-1,0);memset(src[i],1,16<<20);memset(dst[i],1,16<<20);memset(slots[i],1,SLOTBYTES);}
 size_t Ns[]={256<<10,512<<10,1<<20,2<<20};
 size_t Ps[]={16<<10,32<<10,64<<10,128<<10,256<<10,512<<10,1<<20,2<<20};
 int incs[]={0,1,2,3,4,5}; 
 for(int ni=0;ni<4;ni++){N=Ns[ni];
 for(int m=0;m<2;m++)for(int pi=0;pi<8;pi++){if(Ps[pi]>N)continue;for(int k=1;k<=4;k*=2){if(k>(int)(N/Ps[pi]))continue; if(m==1&&k==2&&0)continue;
  double best=1e9;char bn[64]="";printf("%zuK m%d P%zuK K%d:",N>>10,m,Ps[pi]>>10,k);
  for(int x=0;x<8;x++){int ci=(int[]){0,1,4,3,5,0,4,5}[x],co=(int[]){0,1,4,3,5,2,2,2}[x]; // co: into slot; ci: into dst
   mode=m;P=Ps[pi];K=k;nslots=k;iters=2000000/(int)(N>>10)/50+4;cout_=CP[ci];cin=CP[co];
   memset(full,0,sizeof full);memset(empty_,0,sizeof empty_);memset(bar,0,sizeof bar);memset(sent,0,sizeof sent);memset(got,0,sizeof got);
   pthread_t t[2];for(long i=0;i<2;i++)pthread_create(&t[i],0,run,(void*)i);for(int i=0;i<2;i++)pthread_join(t[i],0);
   qsort(res,9,8,cmp);printf(" %s/%s %.1f",NM[ci],NM[co],res[4]);if(res[4]<best){best=res[4];}
  }printf("  best %.1f\n",best);fflush(stdout);}}}
}
