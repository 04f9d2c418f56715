// Ways to all-reduce 0.25 to 4 MiB between two processes on processors 0 and 1: us of a call, the least of many short turns, all ways in
// turns, results checked. gcc -O2 middle.c -o middle; ./middle 40 128 (rounds, KiB of a piece)
#define _GNU_SOURCE
#include <immintrin.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>
#include <signal.h>
static double now(void){struct timespec t;clock_gettime(CLOCK_MONOTONIC,&t);return t.tv_sec*1e6+t.tv_nsec/1e3;}
typedef struct{_Atomic uint64_t w;char pad[120];} Line;
typedef struct{Line at[2];Line piece[2];pid_t pid[2];uint64_t in[2],out[2];} Ctl;
static Ctl*c;static int me;static pid_t peer;static char*in,*out,*tmp;static char*slot[2];static uint64_t pin,pout;
static size_t PIECE=128<<10;
static uint64_t seq,pseq;
static void meet(void){seq++;atomic_store_explicit(&c->at[me].w,seq,memory_order_release);while(atomic_load_explicit(&c->at[!me].w,memory_order_acquire)<seq)_mm_pause();}
static void post(void){pseq++;atomic_store_explicit(&c->piece[me].w,pseq,memory_order_release);}
static void await(uint64_t s){while(atomic_load_explicit(&c->piece[!me].w,memory_order_acquire)<s)_mm_pause();}
static void rd(char*to,uint64_t from,size_t n){struct iovec l={to,n},r={(void*)from,n};if(process_vm_readv(peer,&l,1,&r,1,0)!=(ssize_t)n){perror("readv");_exit(1);}}
// sums: b += a in place by stage; in place direct; out = a+b
__attribute__((target("avx512f"))) static void sum3(float*o,const float*a,const float*b,size_t n){for(size_t i=0;i<n;i+=32){__m512 x=_mm512_add_ps(_mm512_loadu_ps(a+i),_mm512_loadu_ps(b+i));__m512 y=_mm512_add_ps(_mm512_loadu_ps(a+i+16),_mm512_loadu_ps(b+i+16));_mm512_storeu_ps(o+i,x);_mm512_storeu_ps(o+i+16,y);}}
static void sumstage(float*o,const float*a,const float*b,size_t n){float t[1024] __attribute__((aligned(64)));for(size_t i=0;i<n;i+=1024){sum3(t,a+i,b+i,1024);memcpy(o+i,t,4096);}}
// eight pages at once
__attribute__((target("avx512f"))) static void sum_mp(char*o,const char*a,const char*b,size_t n){size_t k=0;
 for(;k+8*4096<=n;k+=8*4096)for(size_t j=0;j<4096;j+=64){
  #pragma GCC unroll 8
  for(int p=0;p<8;p++){size_t q=k+p*4096+j;_mm512_storeu_ps((float*)(o+q),_mm512_add_ps(_mm512_loadu_ps((float*)(a+q)),_mm512_loadu_ps((float*)(b+q))));}}
 if(k<n)sum3((float*)(o+k),(float*)(a+k),(float*)(b+k),(n-k)/4);}
__attribute__((target("avx512f"))) static void cp_mp(char*o,const char*a,size_t n){size_t k=0;
 for(;k+8*4096<=n;k+=8*4096)for(size_t j=0;j<4096;j+=64){__m512 v[8];
  #pragma GCC unroll 8
  for(int p=0;p<8;p++)v[p]=_mm512_loadu_ps((float*)(a+k+p*4096+j));
  #pragma GCC unroll 8
  for(int p=0;p<8;p++)_mm512_storeu_ps((float*)(o+k+p*4096+j),v[p]);}
 if(k<n)memcpy(o+k,a+k,n-k);}
static void movsb(void*d,const void*s,size_t n){__asm__ volatile("rep movsb":"+D"(d),"+S"(s),"+c"(n)::"memory");}
// two outputs
__attribute__((target("avx512f"))) static void sum4(float*o,float*o2,const float*a,const float*b,size_t n){for(size_t i=0;i<n;i+=16){__m512 x=_mm512_add_ps(_mm512_loadu_ps(a+i),_mm512_loadu_ps(b+i));_mm512_storeu_ps(o+i,x);_mm512_storeu_ps(o2+i,x);}}
typedef void(*Way)(size_t);
#define MIN(a,b) ((a)<(b)?(a):(b))
static void full_stage(size_t n){meet();for(size_t k=0;k<n;k+=PIECE){size_t l=MIN(PIECE,n-k);rd(out+k,pin+k,l);sumstage((float*)(out+k),(float*)(in+k),(float*)(out+k),l/4);}meet();}
static void full_direct(size_t n){meet();for(size_t k=0;k<n;k+=PIECE){size_t l=MIN(PIECE,n-k);rd(out+k,pin+k,l);sum3((float*)(out+k),(float*)(in+k),(float*)(out+k),l/4);}meet();}
static void full_tmp(size_t n){meet();for(size_t k=0;k<n;k+=PIECE){size_t l=MIN(PIECE,n-k);rd(tmp,pin+k,l);sum3((float*)(out+k),(float*)(in+k),(float*)tmp,l/4);}meet();}
static void only_read(size_t n){meet();for(size_t k=0;k<n;k+=PIECE){size_t l=MIN(PIECE,n-k);rd(out+k,pin+k,l);}meet();}
static void only_sum(size_t n){meet();sum3((float*)out,(float*)in,(float*)out,n/4);meet();}
// halves, by reading
static void halves(size_t n){size_t h=n/2,m=me*h,t=(!me)*h;meet();for(size_t k=0;k<h;k+=PIECE){size_t l=MIN(PIECE,h-k);rd(out+m+k,pin+m+k,l);sum3((float*)(out+m+k),(float*)(in+m+k),(float*)(out+m+k),l/4);}meet();
 rd(out+t,pout+t,h);meet();}
// halves: result goes by a shared buffer, written with the sum
static void halves_slot(size_t n){size_t h=n/2,m=me*h,t=(!me)*h;meet();uint64_t b=pseq;for(size_t k=0;k<h;k+=PIECE){size_t l=MIN(PIECE,h-k);rd(out+m+k,pin+m+k,l);sum4((float*)(out+m+k),(float*)(slot[!me]+k),(float*)(in+m+k),(float*)(out+m+k),l/4);post();}
 for(size_t k=0;k<h;k+=PIECE){size_t l=MIN(PIECE,h-k);await(++b);cp_mp(out+t+k,slot[me]+k,l);}meet();}
// as Intel MPI
static void intel(size_t n){size_t h=n/2,m=me*h,t=(!me)*h;movsb(slot[!me],in+t,h);meet();cp_mp(out+m,slot[me],h);sum3((float*)(out+m),(float*)(in+m),(float*)(out+m),h/4);
 movsb(slot[!me]+h,out+m,h);meet();cp_mp(out+t,slot[me]+h,h);meet();}
// the same, sums fused
static void intel_f(size_t n){size_t h=n/2,m=me*h,t=(!me)*h;movsb(slot[!me],in+t,h);meet();sum_mp(out+m,in+m,slot[me],h);
 movsb(slot[!me]+h,out+m,h);meet();cp_mp(out+t,slot[me]+h,h);meet();}
// the same in pieces, overlapped
static void intel_p(size_t n){size_t h=n/2,m=me*h,t=(!me)*h;uint64_t b=pseq;size_t np=0;for(size_t k=0;k<h;k+=PIECE,np++){movsb(slot[!me]+k,in+t+k,MIN(PIECE,h-k));post();}
 for(size_t k=0;k<h;k+=PIECE){size_t l=MIN(PIECE,h-k);await(++b);sum_mp(out+m+k,in+m+k,slot[me]+k,l);movsb(slot[!me]+h+k,out+m+k,l);post();}
 for(size_t k=0;k<h;k+=PIECE){await(++b);cp_mp(out+t+k,slot[me]+h+k,MIN(PIECE,h-k));}meet();}
static void slots_full(size_t n){uint64_t b=pseq;size_t w=0;for(size_t k=0;k<n;k+=PIECE){movsb(slot[!me]+k,in+k,MIN(PIECE,n-k));post();}
 for(size_t k=0;k<n;k+=PIECE){size_t l=MIN(PIECE,n-k);await(++b);sum_mp(out+k,in+k,slot[me]+k,l);}meet();(void)w;}
static unsigned turn;
#define EACH(n) size_t np=((n)+PIECE-1)/PIECE;turn++;for(size_t q=0;q<np;q++){size_t k=((turn&1)?q:np-1-q)*PIECE;size_t l=MIN(PIECE,(n)-k);
// every other call from the end
static void both_ways(size_t n){meet();EACH(n) rd(out+k,pin+k,l);sum3((float*)(out+k),(float*)(in+k),(float*)(out+k),l/4);}meet();}
static void backwards(size_t n){meet();size_t np=(n+PIECE-1)/PIECE;for(size_t q=np;q-->0;){size_t k=q*PIECE,l=MIN(PIECE,n-k);rd(out+k,pin+k,l);sum3((float*)(out+k),(float*)(in+k),(float*)(out+k),l/4);}meet();}
struct{const char*name;Way f;}ways[]={{"read",only_read},{"sum",only_sum},{"full_stage",full_stage},{"full_direct",full_direct},{"full_tmp",full_tmp},{"halves",halves},{"halves_slot",halves_slot},{"intel",intel},{"intel_fused",intel_f},{"intel_pieces",intel_p},{"slots_full",slots_full},{"backwards",backwards},{"both_ways",both_ways}};
enum{N=sizeof ways/sizeof*ways};
int main(int ac,char**av){int rounds=ac>1?atoi(av[1]):30;if(ac>2)PIECE=atoi(av[2])<<10;
 size_t MAX=8<<20;c=mmap(0,1<<16,3,MAP_SHARED|MAP_ANONYMOUS,-1,0);
 for(int i=0;i<2;i++)slot[i]=mmap(0,MAX,3,MAP_SHARED|MAP_ANONYMOUS,-1,0);
 pid_t kid=fork();me=kid==0;if(me)prctl(PR_SET_PDEATHSIG,SIGKILL);
 cpu_set_t s;CPU_ZERO(&s);CPU_SET(me,&s);sched_setaffinity(0,sizeof s,&s);
 in=mmap(0,MAX,3,MAP_PRIVATE|MAP_ANONYMOUS,-1,0);out=mmap(0,MAX,3,MAP_PRIVATE|MAP_ANONYMOUS,-1,0);tmp=mmap(0,MAX,3,MAP_PRIVATE|MAP_ANONYMOUS,-1,0);
 for(size_t i=0;i<MAX/4;i++){((float*)in)[i]=i%64+me;((float*)out)[i]=0;((float*)tmp)[i]=0;}
 for(int i=0;i<2;i++)memset(slot[i],1,MAX);
 c->pid[me]=getpid();c->in[me]=(uint64_t)in;c->out[me]=(uint64_t)out;meet();
 peer=c->pid[!me];pin=c->in[!me];pout=c->out[!me];meet();
 size_t sizes[]={256<<10,512<<10,1<<20,2<<20,4<<20};
 printf(me?"":"%-8s","KiB");if(!me){for(int w=0;w<N;w++)printf(" %12s",ways[w].name);puts("");}
 for(int z=0;z<5;z++){size_t n=sizes[z];double best[N];for(int w=0;w<N;w++)best[w]=1e9;int it=n>(1<<20)?8:16;
  for(int r=0;r<rounds;r++)for(int w=0;w<N;w++){for(int i=0;i<3;i++)ways[w].f(n);meet();double t=now();for(int i=0;i<it;i++)ways[w].f(n);t=(now()-t)/it;if(t<best[w])best[w]=t;
   if(r==0&&w>1){for(size_t i=0;i<n/4;i++)if(((float*)out)[i]!=2*(i%64)+1){printf("WRONG %s %zu\n",ways[w].name,i);break;}memset(out,0,n);}meet();}
  if(!me){printf("%-8zu",n>>10);for(int w=0;w<N;w++)printf(" %12.1f",best[w]);puts("");fflush(stdout);}}
 if(!me)wait(0);return 0;}
