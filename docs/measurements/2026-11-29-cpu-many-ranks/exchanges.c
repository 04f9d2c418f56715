// Ways of all-reduce and all-gather among n threads, each pinned: pairs' slots, and slots that all peers read.
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
#define MAXN 16
#define NS 8
#define SLOT (1<<20)
typedef _Atomic uint64_t A;
static double now(){struct timespec t;clock_gettime(CLOCK_MONOTONIC,&t);return t.tv_sec*1e6+t.tv_nsec*1e-3;}
static void pin(int c){cpu_set_t s;CPU_ZERO(&s);CPU_SET(c,&s);pthread_setaffinity_np(pthread_self(),sizeof s,&s);}
typedef struct { _Alignas(64) A step; char inl[56]; } Line; // header and a short payload
typedef struct { Line line[NS]; _Alignas(128) A tail; char pad[120]; char *data; } Conn; // one producer, one reader
typedef struct { Line line[NS]; struct { _Alignas(128) A v; } tail[MAXN]; char *data; } Fan; // one producer, all read
static Conn *conn[MAXN][MAXN]; static Fan *fan[MAXN];
static int N; static size_t BYTES; static int MODE; static int ITERS; static double TIME[MAXN];
static pthread_barrier_t bar;
static float *src[MAXN],*dst[MAXN];
static size_t slot_bytes;
static inline void wait_ge(A*a,uint64_t v){while(atomic_load_explicit(a,memory_order_acquire)<v)_mm_pause();}
static void add(float*restrict d,const float*restrict a,const float*restrict b,size_t n){for(size_t i=0;i<n;i++)d[i]=a[i]+b[i];}
static void addin(float*restrict d,const float*restrict a,size_t n){for(size_t i=0;i<n;i++)d[i]+=a[i];}
// tiles so that a sum stays in L1
static void sum_all(float*d,const float*own,const float**p,int np,size_t n){for(size_t at=0;at<n;at+=512){size_t m=n-at<512?n-at:512;float t[512];add(t,own+at,p[0]+at,m);for(int i=1;i<np;i++)addin(t,p[i]+at,m);memcpy(d+at,t,m*4);}}
static inline char*payload(Line*l,char*data,int s,size_t b){return b<=56?l->inl:data+(size_t)s*slot_bytes;}
static int ASK;
typedef struct {uint64_t sent[MAXN],recvd[MAXN],fs,fr[MAXN],credit[MAXN],fcredit;} St;
static void psend(int me,int p,const void*from,size_t b,St*s){Conn*c=conn[me][p];uint64_t k=s->sent[p]++;int i=k%NS;if(k>=s->credit[p]+NS){do s->credit[p]=atomic_load_explicit(&c->tail,memory_order_acquire);while(k>=s->credit[p]+NS);}
 memcpy(payload(&c->line[i],c->data,i,b),from,b);atomic_store_explicit(&c->line[i].step,k+1,memory_order_release);}
static void*pwait(int me,int p,size_t b,St*s){Conn*c=conn[p][me];uint64_t k=s->recvd[p];int i=k%NS;wait_ge(&c->line[i].step,k+1);return payload(&c->line[i],c->data,i,b);}
static void pdone(int me,int p,St*s){Conn*c=conn[p][me];atomic_store_explicit(&c->tail,++s->recvd[p],memory_order_release);}
static void pask(int me,St*s){for(int p=0;p<N;p++)if(p!=me)__builtin_prefetch(&conn[me][p]->line[s->sent[p]%NS],1,3);}
static void*fbegin(int me,size_t b,St*s){Fan*f=fan[me];uint64_t k=s->fs;int i=k%NS;if(k>=s->fcredit+NS){uint64_t m;do{m=~0ull;for(int p=0;p<N;p++)if(p!=me){uint64_t v=atomic_load_explicit(&f->tail[p].v,memory_order_acquire);if(v<m)m=v;}}while(k>=m+NS);s->fcredit=m;}return payload(&f->line[i],f->data,i,b);}
static void fpub(int me,St*s){Fan*f=fan[me];uint64_t k=s->fs++;atomic_store_explicit(&f->line[k%NS].step,k+1,memory_order_release);if(ASK)__builtin_prefetch(&f->line[s->fs%NS],1,3);}
static void*fwait(int me,int p,size_t b,St*s){Fan*f=fan[p];uint64_t k=s->fr[p];int i=k%NS;wait_ge(&f->line[i].step,k+1);return payload(&f->line[i],f->data,i,b);}
static void fdone(int me,int p,St*s){atomic_store_explicit(&fan[p]->tail[me].v,++s->fr[p],memory_order_release);}
static void op(int me,St*s){size_t b=BYTES,n=b/4;float*in=src[me],*out=dst[me];const float*ps[MAXN];
 switch(MODE){
 case 0: // one-shot all-reduce, pairs
  for(int k=1;k<N;k++)psend(me,(me+k)%N,in,b,s);
  {int j=0;for(int p=0;p<N;p++)if(p!=me)ps[j++]=pwait(me,p,b,s);sum_all(out,in,ps,N-1,n);for(int p=0;p<N;p++)if(p!=me)pdone(me,p,s);}if(ASK)pask(me,s);break;
 case 1: // one-shot all-reduce, fan
  memcpy(fbegin(me,b,s),in,b);fpub(me,s);
  {int j=0;for(int p=0;p<N;p++)if(p!=me)ps[j++]=fwait(me,p,b,s);sum_all(out,in,ps,N-1,n);for(int p=0;p<N;p++)if(p!=me)fdone(me,p,s);}break;
 case 2: {// two-shot, pairs
  size_t blk=n/N;for(int k=1;k<N;k++){int p=(me+k)%N;psend(me,p,in+p*blk,blk*4,s);}
  {int j=0;for(int p=0;p<N;p++)if(p!=me)ps[j++]=pwait(me,p,blk*4,s);sum_all(out+me*blk,in+me*blk,ps,N-1,blk);for(int p=0;p<N;p++)if(p!=me)pdone(me,p,s);}
  for(int k=1;k<N;k++)psend(me,(me+k)%N,out+me*blk,blk*4,s);
  for(int k=1;k<N;k++){int p=(me+N-k)%N;memcpy(out+p*blk,pwait(me,p,blk*4,s),blk*4);pdone(me,p,s);}if(ASK)pask(me,s);}break;
 case 3: {// two-shot, fan both
  size_t blk=n/N;memcpy(fbegin(me,b,s),in,b);fpub(me,s);
  {int j=0;for(int p=0;p<N;p++)if(p!=me)ps[j++]=(float*)fwait(me,p,b,s)+me*blk;float*o=fbegin(me,blk*4,s);sum_all(o,in+me*blk,ps,N-1,blk);fpub(me,s);memcpy(out+me*blk,o,blk*4);for(int p=0;p<N;p++)if(p!=me)fdone(me,p,s);}
  for(int k=1;k<N;k++){int p=(me+N-k)%N;memcpy(out+p*blk,fwait(me,p,blk*4,s),blk*4);fdone(me,p,s);}}break;
 case 4: {// two-shot, pairs then fan
  size_t blk=n/N;for(int k=1;k<N;k++){int p=(me+k)%N;psend(me,p,in+p*blk,blk*4,s);}
  {int j=0;for(int p=0;p<N;p++)if(p!=me)ps[j++]=pwait(me,p,blk*4,s);float*o=fbegin(me,blk*4,s);sum_all(o,in+me*blk,ps,N-1,blk);fpub(me,s);memcpy(out+me*blk,o,blk*4);for(int p=0;p<N;p++)if(p!=me)pdone(me,p,s);}
  for(int k=1;k<N;k++){int p=(me+N-k)%N;memcpy(out+p*blk,fwait(me,p,blk*4,s),blk*4);fdone(me,p,s);}if(ASK)pask(me,s);}break;
 case 5: {// recursive doubling, pairs (n a power of two)
  memcpy(out,in,b);for(int d=1;d<N;d*=2){int p=me^d;psend(me,p,out,b,s);addin(out,pwait(me,p,b,s),n);pdone(me,p,s);if(ASK)__builtin_prefetch(&conn[me][p]->line[s->sent[p]%NS],1,3);}}break;
 case 6: // all-gather one-shot, pairs; b the block
  for(int k=1;k<N;k++)psend(me,(me+k)%N,in,b/N,s);memcpy((char*)out+me*(b/N),in,b/N);
  for(int k=1;k<N;k++){int p=(me+N-k)%N;memcpy((char*)out+p*(b/N),pwait(me,p,b/N,s),b/N);pdone(me,p,s);}if(ASK)pask(me,s);break;
 case 7: // all-gather, fan
  memcpy(fbegin(me,b/N,s),in,b/N);fpub(me,s);memcpy((char*)out+me*(b/N),in,b/N);
  for(int k=1;k<N;k++){int p=(me+N-k)%N;memcpy((char*)out+p*(b/N),fwait(me,p,b/N,s),b/N);fdone(me,p,s);}break;
 case 8: {// all-gather, ring of pairs
  size_t c=b/N;int r=(me+1)%N,l=(me+N-1)%N;memcpy((char*)out+me*c,in,c);psend(me,r,in,c,s);
  for(int k=1;k<N;k++){int p=(me+N-k)%N;void*w=pwait(me,l,c,s);if(k<N-1)psend(me,r,w,c,s);memcpy((char*)out+p*c,w,c);pdone(me,l,s);}}break;
 case 9: // reduce-scatter, pairs
  {size_t blk=n/N;for(int k=1;k<N;k++){int p=(me+k)%N;psend(me,p,in+p*blk,blk*4,s);}
  int j=0;for(int p=0;p<N;p++)if(p!=me)ps[j++]=pwait(me,p,blk*4,s);sum_all(out,in+me*blk,ps,N-1,blk);for(int p=0;p<N;p++)if(p!=me)pdone(me,p,s);if(ASK)pask(me,s);}break;
 case 10: // reduce-scatter, fan
  {size_t blk=n/N;memcpy(fbegin(me,b,s),in,b);fpub(me,s);
  int j=0;for(int p=0;p<N;p++)if(p!=me)ps[j++]=(float*)fwait(me,p,b,s)+me*blk;sum_all(out,in+me*blk,ps,N-1,blk);for(int p=0;p<N;p++)if(p!=me)fdone(me,p,s);}break;
 case 11: // broadcast from 0, fan
  if(me==0){memcpy(fbegin(me,b,s),in,b);fpub(me,s);}else{memcpy(out,fwait(me,0,b,s),b);fdone(me,0,s);}break;
 case 12: // broadcast, chain
  if(me){void*w=pwait(me,me-1,b,s);if(me<N-1)psend(me,me+1,w,b,s);memcpy(out,w,b);pdone(me,me-1,s);}else psend(0,1,in,b,s);break;
 }}
static void*run(void*v){int me=(int)(intptr_t)v;pin(me);St s={0};for(int i=0;i<ITERS/5+NS*2;i++)op(me,&s);pthread_barrier_wait(&bar);double t=now();for(int i=0;i<ITERS;i++)op(me,&s);TIME[me]=(now()-t)/ITERS;pthread_barrier_wait(&bar);
 return 0;}
static void reset(){for(int i=0;i<N;i++){for(int k=0;k<NS;k++)fan[i]->line[k].step=0;for(int k=0;k<N;k++)fan[i]->tail[k].v=0;for(int j=0;j<N;j++)if(i!=j){for(int k=0;k<NS;k++)conn[i][j]->line[k].step=0;conn[i][j]->tail=0;}}}
int main(int c,char**v){N=atoi(v[1]);size_t max=c>2?atol(v[2]):1<<18;const char*nm[]={"ar1 pair","ar1 fan","ar2 pair","ar2 fan","ar2 mix","ar rd","ag pair","ag fan","ag ring","rs pair","rs fan","bc fan","bc chain"};
 for(int i=0;i<N;i++){fan[i]=aligned_alloc(4096,(sizeof(Fan)+4095)&~4095ul);fan[i]->data=aligned_alloc(4096,(size_t)NS*SLOT);memset(fan[i]->data,0,(size_t)NS*SLOT);src[i]=aligned_alloc(4096,4<<20);dst[i]=aligned_alloc(4096,4<<20);memset(src[i],0,4<<20);memset(dst[i],0,4<<20);for(int j=0;j<N;j++)if(i!=j){conn[i][j]=aligned_alloc(4096,(sizeof(Conn)+4095)&~4095ul);conn[i][j]->data=aligned_alloc(4096,(size_t)NS*SLOT/4);memset(conn[i][j]->data,0,(size_t)NS*SLOT/4);}}
 pthread_barrier_init(&bar,0,N);printf("%9s","n bytes");for(int m=0;m<13;m++)printf(" %9s",nm[m]);puts("  (us; with asking below)");
 for(size_t b=8;b<=max;b=b<64?64:b<512?512:b*2)for(ASK=0;ASK<2;ASK++){BYTES=b<4ul*N?4ul*N:b;printf("%2d %6zu",N,b);
 for(MODE=0;MODE<13;MODE++){size_t bb=BYTES;if(MODE<2||MODE==5||MODE>10)BYTES=b;size_t need=(MODE==2||MODE==4||MODE==6||MODE==8||MODE==9)?BYTES/N:BYTES;slot_bytes=(need+4095)&~4095ul;if(slot_bytes>SLOT/4&&(MODE!=1&&MODE!=3&&MODE!=7&&MODE!=10&&MODE!=11)){printf(" %9s","-");BYTES=bb;continue;}
 ITERS=b<=4096?4000:b<=65536?800:200;double best=1e9,med[3];for(int r=0;r<3;r++){reset();pthread_t t[MAXN];for(int i=0;i<N;i++)pthread_create(&t[i],0,run,(void*)(intptr_t)i);for(int i=0;i<N;i++)pthread_join(t[i],0);double m=0;for(int i=0;i<N;i++)if(TIME[i]>m)m=TIME[i];if(m<best)best=m;med[r]=m;}
 printf(" %9.2f",best);fflush(stdout);BYTES=bb;}puts(ASK?" ask":"");}}
