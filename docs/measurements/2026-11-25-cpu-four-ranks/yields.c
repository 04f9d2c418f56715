#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <linux/futex.h>
// N procs all-gather of 1 word each (every one posts own, waits for all), on 2 cpus; spins S then yield
static double now(){struct timespec t;clock_gettime(CLOCK_MONOTONIC,&t);return t.tv_sec*1e6+t.tv_nsec/1e3;}
typedef struct{_Atomic unsigned w; char pad[124];} L;
int main(int c,char**v){
 int n=atoi(v[1]); int spins=atoi(v[2]); int pin=atoi(v[3]); int iters=atoi(v[4]); int usepause=c>5?atoi(v[5]):1;
 L*m=mmap(0,1<<20,3,MAP_SHARED|MAP_ANONYMOUS,-1,0);
 int r=0; for(int i=1;i<n;i++) if(fork()==0){r=i;break;}
 if(pin){cpu_set_t s;CPU_ZERO(&s);CPU_SET(pin==1? r%2 : (r/((n+1)/2)),&s);sched_setaffinity(0,sizeof s,&s);}
 unsigned long yields=0;
 double best=1e9,t00=now();
 unsigned k=0;
 for(int round=0;round<9;round++){
  double t0=now();
  for(int i=0;i<iters;i++){ k++; atomic_store_explicit(&m[r].w,k,memory_order_release);
   for(int p=1;p<n;p++){ int q=(r+p)%n; int polls=0; while((int)(atomic_load_explicit(&m[q].w,memory_order_acquire)-k)<0){ if(++polls%(spins)==0){yields++;sched_yield();} else if(usepause) __builtin_ia32_pause(); } } }
  double t=(now()-t0)/iters; if(t<best)best=t; }
 struct rusage u; getrusage(RUSAGE_SELF,&u);
 if(r==0){ printf("n %d spins %d pin %d: best %.2f us mean %.2f yields/op %.2f vol %.2f invol %.2f\n",n,spins,pin,best,(now()-t00)/iters/9,(double)yields/iters/9,(double)u.ru_nvcsw/iters/9,(double)u.ru_nivcsw/iters/9);
 while(wait(0)>0);} 
}
