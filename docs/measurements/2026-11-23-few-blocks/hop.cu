// Throw-away: what one block of threads moves per second, by kind of hop and way of copying. Two GPUs at once.
#include <cstdio>
#include <cstdint>
#include <cstdlib>
#include <vector>
#include <algorithm>
#include <cuda_runtime.h>
#define CK(x) do{cudaError_t e=(x); if(e){printf("%s:%d %s\n",__FILE__,__LINE__,cudaGetErrorString(e));exit(1);}}while(0)
struct A { const char*s0; const char*s1; char*d0; char*d1; int s0ring,s1ring,d0ring,d1ring; size_t per; unsigned slice; volatile uint64_t*flag; int T,S,W; };
__device__ inline uint4 ldp(const char*p){uint4 v; asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3},[%4];":"=r"(v.x),"=r"(v.y),"=r"(v.z),"=r"(v.w):"l"(p)); return v;}
__device__ inline void stp(char*p,uint4 v){asm volatile("st.global.v4.u32 [%0],{%1,%2,%3,%4};"::"l"(p),"r"(v.x),"r"(v.y),"r"(v.z),"r"(v.w):"memory");}
__device__ inline float4 f(uint4 a){return *(float4*)&a;}
__device__ inline uint4 add(uint4 a,uint4 b){float4 x=f(a),y=f(b); x.x+=y.x;x.y+=y.y;x.z+=y.z;x.w+=y.w; return *(uint4*)&x;}
__device__ inline const char* at(const char*b,int ring,size_t off,const A&a,size_t blk){ // ring: 8 slots of slice
  return ring? b+blk*(8ull*a.slice)+off%(8ull*a.slice) : b+blk*a.per+off; }
template<int U,int NS,int ND> __global__ void __launch_bounds__(544,1) ord(A a){
  unsigned workers=blockDim.x-32; size_t blk=blockIdx.x; bool poster=threadIdx.x>=workers;
  uint64_t step=0;
  for(size_t off=0;off<a.per;off+=a.slice){
    if(!poster){
      const char*s0=at(a.s0,a.s0ring,off,a,blk); const char*s1=NS>1?at(a.s1,a.s1ring,off,a,blk):0;
      char*d0=(char*)at(a.d0,a.d0ring,off,a,blk); char*d1=ND>1?(char*)at(a.d1,a.d1ring,off,a,blk):0;
      size_t stp_=workers*16; 
      for(size_t i=threadIdx.x*16;i+(U-1)*stp_<a.slice;i+=U*stp_){
        uint4 v[U],w[U];
        #pragma unroll
        for(int u=0;u<U;u++){v[u]=ldp(s0+i+u*stp_); if(NS>1)w[u]=ldp(s1+i+u*stp_);}
        #pragma unroll
        for(int u=0;u<U;u++){uint4 x=NS>1?add(v[u],w[u]):v[u]; stp(d0+i+u*stp_,x); if(ND>1)stp(d1+i+u*stp_,x);}
      }
      // rest is left out: less than a turn, so count it in `moved`
    }
    asm volatile("barrier.cta.sync 0;":::"memory");
    if(threadIdx.x==workers){ __threadfence_system(); a.flag[blk*16]=++step; }
    if(!poster) asm volatile("barrier.cta.sync 1,%0;"::"r"(workers):"memory");
  }
}
__device__ inline uint32_t sm(const void*p){return (uint32_t)__cvta_generic_to_shared(p);}
__device__ inline void waitb(uint32_t b,uint32_t par){ asm volatile("{.reg .pred p; L: mbarrier.try_wait.parity.shared::cta.b64 p,[%0],%1; @!p bra L;}"::"r"(b),"r"(par):"memory"); }
template<int NS,int ND> __global__ void __launch_bounds__(544,1) tma(A a){
  extern __shared__ __align__(128) char mem[];
  __shared__ __align__(8) uint64_t bars[16*8];
  int warps=blockDim.x/32-1, w=threadIdx.x/32, lane=threadIdx.x&31; size_t blk=blockIdx.x; bool poster=w==warps;
  int T=a.T,S=a.S;
  if(threadIdx.x<warps*S){ asm volatile("mbarrier.init.shared::cta.b64 [%0],1;"::"r"(sm(&bars[threadIdx.x])):"memory"); }
  asm volatile("fence.mbarrier_init.release.cluster;":::"memory"); asm volatile("fence.proxy.async;":::"memory");
  __syncthreads();
  uint64_t step=0; uint32_t use=0; // uses by this warp
  char*mine=mem+(size_t)w*S*NS*T;
  for(size_t off=0;off<a.per;off+=a.slice){
    if(!poster&&(NS>1||lane==0)){
      const char*s0=at(a.s0,a.s0ring,off,a,blk); const char*s1=NS>1?at(a.s1,a.s1ring,off,a,blk):0;
      char*d0=(char*)at(a.d0,a.d0ring,off,a,blk); char*d1=ND>1?(char*)at(a.d1,a.d1ring,off,a,blk):0;
      int n=a.slice/T; n=(n-w+warps-1)/warps;
      auto load=[&](int k){ // k-th tile of this warp in the slice
        if(lane==0){ uint32_t u=use+k,st=u%S; uint32_t b=sm(&bars[w*S+st]); size_t o=(size_t)(w+k*warps)*T;
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _,[%0],%1;"::"r"(b),"r"(T*NS):"memory");
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0],[%1],%2,[%3];"::"r"(sm(mine+st*NS*T)),"l"(s0+o),"r"(T),"r"(b):"memory");
        if(NS>1)asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0],[%1],%2,[%3];"::"r"(sm(mine+st*NS*T+T)),"l"(s1+o),"r"(T),"r"(b):"memory");}};
      for(int k=0;k<S&&k<n;k++)load(k);
      for(int k=0;k<n;k++){
        uint32_t u=use+k,st=u%S; waitb(sm(&bars[w*S+st]),(u/S)&1);
        if(NS>1){ uint4*x=(uint4*)(mine+st*NS*T),*y=(uint4*)(mine+st*NS*T+T);
          #pragma unroll 4
          for(int i=lane;i<T/16;i+=32)x[i]=add(x[i],y[i]);
          asm volatile("fence.proxy.async.shared::cta;":::"memory"); __syncwarp(); }
        if(lane==0){ size_t o=(size_t)(w+k*warps)*T;
          asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0],[%1],%2;"::"l"(d0+o),"r"(sm(mine+st*NS*T)),"r"(T):"memory");
          if(ND>1)asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0],[%1],%2;"::"l"(d1+o),"r"(sm(mine+st*NS*T)),"r"(T):"memory");
          asm volatile("cp.async.bulk.commit_group;":::"memory");
          if(k>0&&k-1+S<n){ asm volatile("cp.async.bulk.wait_group.read 1;":::"memory"); load(k-1+S);} }
        if(NS>1)__syncwarp();
      }
      if(lane==0){asm volatile("cp.async.bulk.wait_group 0;":::"memory"); asm volatile("fence.proxy.async;":::"memory");}
      use+=n;
    }
    asm volatile("barrier.cta.sync 0;":::"memory");
    if(threadIdx.x==warps*32){ asm volatile("fence.proxy.async;":::"memory"); __threadfence_system(); a.flag[blk*16]=++step; }
    if(!poster) asm volatile("barrier.cta.sync 1,%0;"::"r"(warps*32):"memory");
  }
}
char *user[2][2],*out[2],*ring[2]; uint64_t*flags[2]; cudaStream_t st[2]; cudaEvent_t e0[2],e1[2];
typedef void(*K)(A);
double run(K k,int kind,int nb,int threads,size_t per,unsigned slice,int T,int S,int smem,int two){
  std::vector<double> ts; 
  CK(cudaFuncSetAttribute(k,cudaFuncAttributeMaxDynamicSharedMemorySize,smem));
  for(int it=0;it<4;it++){ 
    for(int g=0;g<2;g++){ CK(cudaSetDevice(g)); if(it==0)CK(cudaFuncSetAttribute(k,cudaFuncAttributeMaxDynamicSharedMemorySize,smem)); CK(cudaDeviceSynchronize()); }
    for(int g=0;g<two;g++){ CK(cudaSetDevice(g)); int o=1-g; A a{}; a.per=per;a.slice=slice;a.flag=flags[o];a.T=T;a.S=S;
      size_t half=256ull<<20;
      switch(kind){
        case 0: a.s0=user[g][0]; a.d0=ring[o]; a.d0ring=1; break; // s
        case 1: a.s0=user[g][0]; a.d0=ring[o]; a.d0ring=1; a.d1=out[g]; break; // c
        case 2: a.s0=ring[g]+half; a.s0ring=1; a.d0=out[g]; break; // r
        case 3: a.s0=ring[g]+half; a.s0ring=1; a.s1=user[g][0]; a.d0=out[g]; break; // q
        case 4: a.s0=ring[g]+half; a.s0ring=1; a.s1=user[g][0]; a.d0=out[g]; a.d1=ring[o]; a.d1ring=1; break; // p
        case 5: a.s0=ring[o]+half; a.s0ring=1; a.d0=out[g]; break; // pull
      }
      CK(cudaEventRecord(e0[g],st[g])); k<<<nb,threads,smem,st[g]>>>(a); CK(cudaGetLastError()); CK(cudaEventRecord(e1[g],st[g])); }
    double worst=0; for(int g=0;g<two;g++){ CK(cudaSetDevice(g)); CK(cudaStreamSynchronize(st[g])); float ms; CK(cudaEventElapsedTime(&ms,e0[g],e1[g])); worst=std::max(worst,(double)ms);}    
    if(it)ts.push_back(worst); }
  std::sort(ts.begin(),ts.end()); return (double)per*nb/1e6/ts[0]; }
const char*names[]={"s","c","r","q","p","pull"};
template<int U> void ords(int threads,unsigned slice){
  size_t turn=(size_t)U*(threads-32)*16; 
  double share=(double)(slice/turn*turn)/slice; // part really moved
  K ks[]={ord<U,1,1>,ord<U,1,2>,ord<U,1,1>,ord<U,2,1>,ord<U,2,2>,ord<U,1,1>};
  for(int nb:{1,8,16}){ printf("ord u%-2d %3d thr slice %4uK blocks %2d:",U,threads,slice>>10,nb);
    for(int kind=0;kind<6;kind++){ double g=run(ks[kind],kind,nb,threads,32ull<<20,slice,0,0,0,2)*share; printf(" %s %6.1f (%4.1f)",names[kind],g,g/nb);} printf("\n"); }
  fflush(stdout); }
void tmas(int warps,int T,unsigned slice,int nbs){
  K ks[]={tma<1,1>,tma<1,2>,tma<1,1>,tma<2,1>,tma<2,2>,tma<1,1>};
  const int room=220<<10;
  for(int nb:{1,8,16}){ if(nbs==1&&nb==1)continue; printf("tma w%-2d tile %5d slice %4uK blocks %2d:",warps,T,slice>>10,nb);
    for(int kind=0;kind<6;kind++){ int ns=(kind==3||kind==4)?2:1; int S=std::min(8,room/(warps*T*ns)); if(S<2){printf(" %s   -         ",names[kind]);continue;} 
      double g=run(ks[kind],kind,nb,(warps+1)*32,32ull<<20,slice,T,S,warps*T*ns*S,2); printf(" %s%d %6.1f (%4.1f)",names[kind],S,g,g/nb);} printf("\n"); }
  fflush(stdout); }
int main(){
  for(int g=0;g<2;g++){ CK(cudaSetDevice(g)); CK(cudaDeviceEnablePeerAccess(1-g,0)); CK(cudaStreamCreate(&st[g])); CK(cudaEventCreate(&e0[g])); CK(cudaEventCreate(&e1[g]));
    CK(cudaMalloc(&user[g][0],1ull<<30)); CK(cudaMalloc(&out[g],1ull<<30)); CK(cudaMalloc(&ring[g],512ull<<20)); CK(cudaMalloc(&flags[g],1<<20));
    CK(cudaMemset(user[g][0],0x3c,1ull<<30)); CK(cudaMemset(ring[g],0x3d,512ull<<20)); CK(cudaMemset(flags[g],0,1<<20)); CK(cudaDeviceSynchronize()); }
  ords<4>(384,256<<10); ords<8>(384,256<<10); ords<16>(384,256<<10); ords<8>(544,256<<10); ords<4>(544,256<<10);
  ords<4>(384,64<<10); ords<8>(384,1<<20); ords<8>(544,1<<20);
  for(unsigned slice:{256u<<10,512u<<10,1u<<20}) for(int w:{1,2,4,8}) for(int T:{4<<10,8<<10,16<<10,32<<10}) { if(slice!=(512u<<10)&&T!=(w>=4?8<<10:16<<10)) continue; if(w*T*2>(220<<10)) continue; tmas(w,T,slice,1); }
  tmas(4,8<<10,1<<20,3);
  printf("done\n"); return 0; }
