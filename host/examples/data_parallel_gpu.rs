//! Data-parallel training on GPUs, without `unsafe`: a process for each GPU, gradients averaged between the GPUs while the next ones are
//! made.
//!
//! ```sh
//! cargo xtask build-ptx
//! cargo build --release -p oxccl --example data_parallel_gpu
//! torchrun --no-python --nproc-per-node 4 target/release/examples/data_parallel_gpu    # or mpirun, or srun
//! target/release/examples/data_parallel_gpu --ranks 4                                  # starts the processes itself
//! target/release/examples/data_parallel_gpu --compare                                  # 1, 2 and 4 processes give one loss curve
//! ```
//!
//! All that the communicator needs is in torchrun's environment: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT. Without
//! torchrun the program sets the same for the processes that it starts. Processes beyond the number of GPUs share them.
//!
//! What it shows, in the order in which a reader meets it below:
//! 1. a communicator from the environment, and a stream of its GPU;
//! 2. a broadcast makes the initial parameters equal;
//! 3. buckets: the gradient of a part of the share is summed between the GPUs, on a stream, while the processor makes that of the next part;
//! 4. buffers are dropped as soon as the calls have returned: cudarc frees them when the stream is done with them.
//!
//! The model is that of `data_parallel`, which trains on CPUs: its gradient is made by the processor, where a real program has kernels.

#[path = "data_parallel/digits.rs"]
#[allow(dead_code, reason = "data_parallel reads a file, too")]
mod digits;
#[path = "data_parallel/model.rs"]
mod model;
#[path = "data_parallel/processes.rs"]
mod processes;

use digits::Picture;
use model::{Model, PARAMETERS};
use oxccl::api::launcher::LaunchEnv;
use oxccl::cuda::Driver;
use oxccl::cudarc::driver::{CudaContext, CudaSlice, CudaStream};
use oxccl::{DeviceCommunicator, ReduceOp};
use std::error::Error;
use std::process::{Command, ExitCode};
use std::sync::Arc;

/// Pictures of a step, over all ranks. Divides by every number of ranks that is used here.
const BATCH: usize = 64;
/// Parts of a rank's share, each with a gradient that is summed while the next is made.
const PARTS: usize = 4;
const EPOCHS: usize = 20;
const LEARNING_RATE: f32 = 0.3;
/// The loss curves of different numbers of ranks may differ by this much: sums are rounded in another order, and training carries
/// the difference along.
const BOUND: f64 = 1e-4;
const PORT: &str = "29517";

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    match start() {
        Ok(status) => status,
        Err(error) => {
            eprintln!("data_parallel_gpu: {error}");
            ExitCode::FAILURE
        }
    }
}

fn start() -> Result<ExitCode> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let Some(launch) = LaunchEnv::detect(&|name| std::env::var(name).ok())? {
        train(&launch)?;
        return Ok(ExitCode::SUCCESS);
    }
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--compare"] => compare(),
        ["--ranks", ranks] => run_processes(ranks.parse()?, |line| println!("{line}")),
        _ => Err("start it with torchrun, mpirun or srun, or with --ranks N or --compare".into()),
    }
}

/// A rank, and its GPU as cudarc knows it.
struct Rank {
    comm: DeviceCommunicator,
    stream: Arc<CudaStream>,
}

impl Rank {
    fn new(launch: &LaunchEnv) -> Result<Rank> {
        // Each its own where there are enough: the builder's own choice.
        let gpu = launch.local_rank.unwrap_or(launch.rank) % Driver::get()?.device_count();
        let comm = DeviceCommunicator::builder().from_env()?.device(gpu).build()?;
        let stream = CudaContext::new(gpu as usize)?.new_stream()?;
        Ok(Rank { comm, stream })
    }

    /// The sum of all ranks' `values`, on its way: what reads it on the stream, or waits for it, comes after it.
    fn sum(&self, values: &[f32]) -> Result<CudaSlice<f32>> {
        let own = self.stream.clone_htod(values)?;
        let mut sum = self.stream.alloc_zeros(values.len())?;
        self.comm.on(&self.stream)?.all_reduce(&own, &mut sum, ReduceOp::SUM)?;
        // `own` is dropped, and the operation may not have begun.
        Ok(sum)
    }
}

/// Trains on this rank's share. Rank 0 prints one line per epoch: number, mean loss, share of the test pictures recognised.
fn train(launch: &LaunchEnv) -> Result<()> {
    let rank = Rank::new(launch)?;
    let (number, ranks) = (rank.comm.rank() as usize, rank.comm.size() as usize);
    if !BATCH.is_multiple_of(ranks * PARTS) {
        return Err(format!("{ranks} ranks cannot share batches of {BATCH} in {PARTS} parts evenly").into());
    }
    let pictures = digits::draw();
    let (training, testing) = pictures.split_at(pictures.len() * 5 / 6);

    // Only rank 0's first parameters count.
    let mut model = Model::random(number as u64);
    let mut parameters = rank.stream.clone_htod(model.parameters_mut())?;
    rank.comm.on(&rank.stream)?.broadcast_in_place(&mut parameters, 0)?;
    rank.stream.memcpy_dtoh(&parameters, model.parameters_mut())?;
    rank.stream.synchronize()?;

    for epoch in 1..=EPOCHS {
        let order = digits::shuffled(training.len(), epoch as u64);
        let (mut loss_sum, mut steps) = (0f64, 0);
        for batch in order.chunks_exact(BATCH) {
            // Every rank knows the whole batch and takes its own part of it.
            let mine: Vec<&Picture> =
                batch[number * BATCH / ranks..][..BATCH / ranks].iter().map(|&at| &training[at]).collect();
            loss_sum += step(&rank, &mut model, &mine)?;
            steps += 1;
        }
        let loss = rank.stream.clone_dtoh(&rank.sum(&[(loss_sum / f64::from(steps)) as f32])?)?;
        rank.stream.synchronize()?;
        if number == 0 {
            let known = testing.iter().filter(|picture| model.digit(picture) == picture.digit).count();
            let loss = loss[0] / ranks as f32;
            println!("{epoch} {loss:e} {:.4}", known as f64 / testing.len() as f64);
        }
    }
    Ok(rank.comm.finalize()?)
}

/// One step of all ranks. Gives this rank's mean loss.
fn step(rank: &Rank, model: &mut Model, mine: &[&Picture]) -> Result<f64> {
    let (mut sums, mut loss) = (Vec::new(), 0f64);
    let mut gradient = vec![0f32; PARAMETERS];
    for part in mine.chunks_exact(mine.len() / PARTS) {
        loss += model.gradient(part.iter().copied(), &mut gradient) / PARTS as f64;
        // The GPUs sum this part's gradient while the processor makes the next part's.
        sums.push(rank.sum(&gradient)?);
    }
    gradient.fill(0.0);
    let scale = 1.0 / (PARTS * rank.comm.size() as usize) as f32;
    for sum in &sums {
        let sum = rank.stream.clone_dtoh(sum)?;
        rank.stream.synchronize()?;
        gradient.iter_mut().zip(&sum).for_each(|(mean, slope)| *mean += slope * scale);
    }
    model.descend(&gradient, LEARNING_RATE);
    Ok(loss)
}

/// Starts `ranks` processes of this program with torchrun's environment, and gives what rank 0 prints, line by line.
fn run_processes(ranks: u32, line: impl FnMut(&str)) -> Result<ExitCode> {
    let introduce = |command: &mut Command, rank: u32| {
        command.env("RANK", rank.to_string()).env("WORLD_SIZE", ranks.to_string());
        command.env("LOCAL_RANK", rank.to_string()).env("LOCAL_WORLD_SIZE", ranks.to_string());
        command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", PORT);
    };
    processes::run(ranks, introduce, line)?;
    Ok(ExitCode::SUCCESS)
}

/// Runs 1, 2 and 4 processes and compares their loss curves.
fn compare() -> Result<ExitCode> {
    let mut curves: Vec<Vec<f64>> = Vec::new();
    for ranks in [1, 2, 4] {
        let mut curve = Vec::new();
        run_processes(ranks, |line| {
            curve.extend(line.split(' ').nth(1).and_then(|word| word.parse::<f64>().ok()));
        })?;
        if curve.len() != EPOCHS {
            return Err(format!("{ranks} processes: {} epochs of {EPOCHS}", curve.len()).into());
        }
        println!("{ranks} processes: loss {:.6} to {:.6}", curve[0], curve[EPOCHS - 1]);
        curves.push(curve);
    }
    let worst = curves[1..].iter().flat_map(|curve| curve.iter().zip(&curves[0]));
    let worst = worst.map(|(a, b)| ((a - b) / b).abs()).fold(0.0, f64::max);
    let is_good = worst <= BOUND && curves[0][EPOCHS - 1] < curves[0][0] / 4.0;
    println!(
        "greatest relative difference {worst:.1e}, bound {BOUND:.0e}: {}",
        if is_good { "OK" } else { "FAILED" }
    );
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
