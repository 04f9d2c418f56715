// Two threads that exchange messages: through eight slots each way (run1, of the program before), or through two buffers of which each fills
// the one that it has just read (run2). cc -O2 -march=native exchange.c -lpthread && ./a.out ROUNDS
#define main main_of_before
#include "../2026-11-28-cpu-zen5/exchange.c"
#undef main
static void*run2(void*p){int me=(int)(intptr_t)p;pin(me);uint64_t k=0;F ff=f[FM],rf=f[RM];
 for(long i=0;i<N;i++){char*mine=slots[(me+k)&1],*theirs=slots[(1-me+k)&1];ff(mine,src[me],LEN);k++;atomic_store_explicit(&pub[me].v,k,memory_order_release);
  while(atomic_load_explicit(&pub[1-me].v,memory_order_acquire)<k)_mm_pause();rf(dst[me],theirs,LEN);}return 0;}
static double best_of(void*(*run)(void*),int fill,int read){FM=fill;RM=read;NS=8;double best=1e9;
 for(int r=0;r<5;r++){pub[0].v=pub[1].v=0;pthread_t x,y;double t=now();pthread_create(&x,0,run,0);pthread_create(&y,0,run,(void*)1);pthread_join(x,0);pthread_join(y,0);t=(now()-t)/N;if(t<best)best=t;}
 return best;}
int main(int c,char**v){
 for(int i=0;i<2;i++){slots[i]=aligned_alloc(1<<21,8<<20);src[i]=aligned_alloc(1<<21,8<<20);dst[i]=aligned_alloc(1<<21,8<<20);memset(slots[i],1,8<<20);memset(src[i],1,8<<20);memset(dst[i],1,8<<20);}
 size_t lens[]={2048,4096,8192,16384,32768,65536,131072,262144};
 for(int rep=0;rep<atoi(v[1]);rep++)for(int l=0;l<8;l++){LEN=PIECE=lens[l];N=LEN<20000?3000:LEN<70000?500:150;
  // m: rep movsb; a: AVX-512, four lines at a time; at the filling and at the reading end. The state of the machine: slots by a.
  printf("%zu state %.3f : fifo8mm %.3f fifo8ma %.3f",LEN,best_of(run1,4,4),best_of(run1,6,6),best_of(run1,6,4));
  printf(" swapmm %.3f swapma %.3f swapam %.3f swapaa %.3f",best_of(run2,6,6),best_of(run2,6,4),best_of(run2,4,6),best_of(run2,4,4));
  printf(" end %.3f\n",best_of(run1,4,4));fflush(stdout);}}
