//! Data-parallel training: the same model on every rank, each rank's share of the data, gradients averaged by all-reduce.
//!
//! ```sh
//! cargo run --release -p oxccl --example data_parallel -- --ranks 4       # four processes on this machine
//! mpirun -n 4 target/release/examples/data_parallel                       # or started by a launcher
//! cargo run --release -p oxccl --example data_parallel -- --compare       # 1, 2 and 4 processes give one loss curve
//! ```
//!
//! What it shows, in the order in which a reader meets it below:
//! 1. ranks find each other: from a launcher's environment, or by a [`UniqueId`] handed to child processes;
//! 2. a broadcast makes the initial parameters equal;
//! 3. gradients are averaged in buckets, all buckets of a step in one group;
//! 4. why the result does not depend on the number of ranks, but for rounding.
//!
//! The data are 1797 pictures of handwritten digits, 8 by 8 pixels of 0 to 16, where a file of them is given with `--digits FILE`:
//! one picture per line, 64 pixels and the digit, separated by commas. It comes with scikit-learn, compressed:
//!
//! ```sh
//! zcat .../site-packages/sklearn/datasets/data/digits.csv.gz > digits.csv
//! ```
//!
//! Without a file, as many pictures are drawn by the formula in `digits.rs`.

mod digits;
mod model;
mod processes;

use digits::Picture;
use model::{Model, PARAMETERS};
use oxccl::api::launcher::LaunchEnv;
use oxccl::{Communicator, ReduceOp, UniqueId};
use std::error::Error;
use std::process::{Command, ExitCode};

/// Pictures of a step, over all ranks. Divides by every number of ranks that is used here.
const BATCH: usize = 64;
const EPOCHS: usize = 30;
const LEARNING_RATE: f32 = 0.3;
/// Gradients per all-reduce. Real models have many layers and reduce a bucket as soon as its layers are done; this one has few
/// parameters, so the buckets are small enough that there are several.
const BUCKET: usize = 1024;
/// The loss curves of different numbers of ranks may differ by this much, relative to the loss. They are not equal, because sums of
/// gradients are rounded in another order (2^-24 of relative error for each addition), and training carries the difference along;
/// 1e-7 is what is seen, and an error in the averaging is worth much more than the bound.
const BOUND: f64 = 1e-5;

/// How child processes learn who they are: "rank,ranks,unique id".
const MEMBER: &str = "DATA_PARALLEL_MEMBER";

fn main() -> ExitCode {
    match start() {
        Ok(status) => status,
        Err(error) => {
            eprintln!("data_parallel: {error}");
            ExitCode::FAILURE
        }
    }
}

fn start() -> Result<ExitCode, Box<dyn Error>> {
    let arguments = Arguments::parse()?;
    if let Ok(member) = std::env::var(MEMBER) {
        train(&join(&member)?, &arguments)?;
    } else if arguments.compare {
        return compare(&arguments);
    } else if LaunchEnv::detect(&|name| std::env::var(name).ok())?.is_some() {
        train(&Communicator::from_env()?, &arguments)?;
    } else {
        run_processes(arguments.ranks, |line| println!("{line}"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The communicator of a child process.
fn join(member: &str) -> Result<Communicator, Box<dyn Error>> {
    let mut parts = member.splitn(3, ',');
    let mut part = || parts.next().ok_or(format!("{MEMBER} is incomplete"));
    let (rank, ranks): (u32, u32) = (part()?.parse()?, part()?.parse()?);
    let id: UniqueId = part()?.parse()?;
    Ok(Communicator::builder().unique_id(id).rank(rank).ranks(ranks).build()?)
}

/// Trains on this rank's share. Rank 0 prints one line per epoch: number, mean loss, share of the test pictures recognised.
fn train(communicator: &Communicator, arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let (rank, ranks) = (communicator.rank() as usize, communicator.size() as usize);
    if !BATCH.is_multiple_of(ranks) {
        return Err(format!("{ranks} ranks cannot share batches of {BATCH} evenly").into());
    }
    let pictures = arguments.pictures()?;
    let (training, testing) = pictures.split_at(pictures.len() * 5 / 6);

    // Only rank 0's first parameters count. They could be drawn alike everywhere; from a file, only one rank would read it.
    let mut model = Model::random(rank as u64);
    communicator.broadcast_in_place(model.parameters_mut(), 0)?;

    let mut gradient = vec![0f32; PARAMETERS];
    for epoch in 1..=EPOCHS {
        let order = digits::shuffled(training.len(), epoch as u64);
        let mut loss_sum = 0f64;
        let mut steps = 0;
        for batch in order.chunks_exact(BATCH) {
            // Every rank knows the whole batch and takes its own part of it.
            let share = BATCH / ranks;
            let mine = &batch[rank * share..][..share];
            let loss = model.gradient(mine.iter().map(|&at| &training[at]), &mut gradient);
            average(communicator, &mut gradient)?;
            model.descend(&gradient, LEARNING_RATE);
            loss_sum += loss;
            steps += 1;
        }
        // The mean over equal shares is the mean over all: the same number for any number of ranks, but for rounding.
        let mut loss = [loss_sum / f64::from(steps)];
        communicator.all_reduce_in_place(&mut loss, ReduceOp::AVG)?;
        if rank == 0 {
            let known = testing.iter().filter(|picture| model.digit(picture) == picture.digit).count();
            println!("{epoch} {:e} {:.4}", loss[0], known as f64 / testing.len() as f64);
        }
    }
    Ok(())
}

/// Makes every rank's gradient the mean of all ranks' gradients: one all-reduce per bucket, all of them in one group.
fn average(communicator: &Communicator, gradient: &mut [f32]) -> Result<(), oxccl::Error> {
    oxccl::group(|group| {
        for bucket in gradient.chunks_mut(BUCKET) {
            group.all_reduce_in_place(communicator, bucket, ReduceOp::AVG)?;
        }
        Ok(())
    })
}

/// Starts `ranks` processes of this program and gives what rank 0 prints, line by line.
fn run_processes(ranks: u32, line: impl FnMut(&str)) -> Result<(), Box<dyn Error>> {
    // The id says where the ranks meet and proves to each that the others belong to this run. Its maker must live until they met.
    let id = UniqueId::create()?;
    let introduce = |command: &mut Command, rank| {
        command.env(MEMBER, format!("{rank},{ranks},{id}"));
    };
    processes::run(ranks, introduce, line)
}

/// Runs 1, 2 and 4 processes and compares their loss curves.
fn compare(arguments: &Arguments) -> Result<ExitCode, Box<dyn Error>> {
    println!("data: {}", arguments.source());
    let mut curves: Vec<Vec<(f64, f64)>> = Vec::new();
    let worlds = [1, 2, 4];
    for ranks in worlds {
        let mut curve = Vec::new();
        run_processes(ranks, |line| curve.extend(parse(line)))?;
        if curve.len() != EPOCHS {
            return Err(format!("{ranks} processes: {} epochs of {EPOCHS}", curve.len()).into());
        }
        curves.push(curve);
    }
    println!("epoch  loss of 1, 2, 4 processes             recognised (1)");
    for epoch in 0..EPOCHS {
        let losses: Vec<String> = curves.iter().map(|curve| format!("{:.8}", curve[epoch].0)).collect();
        println!("{:>5}  {}  {:.4}", epoch + 1, losses.join("  "), curves[0][epoch].1);
    }
    let mut worst = 0f64;
    for (ranks, curve) in worlds.iter().zip(&curves).skip(1) {
        let pairs = curve.iter().zip(&curves[0]);
        let difference = pairs.map(|((a, _), (b, _))| ((a - b) / b).abs()).fold(0.0, f64::max);
        println!("{ranks} processes against 1: greatest relative difference of the loss {difference:.2e}");
        worst = worst.max(difference);
    }
    let (first, last) = (curves[0][0].0, curves[0][EPOCHS - 1].0);
    let good = worst <= BOUND && last < first / 4.0;
    println!("bound {BOUND:.0e}, loss {first:.4} to {last:.4}: {}", if good { "OK" } else { "FAILED" });
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// "epoch loss recognised"
fn parse(line: &str) -> Option<(f64, f64)> {
    let mut words = line.split_whitespace().skip(1);
    Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
}

struct Arguments {
    ranks: u32,
    compare: bool,
    digits: Option<String>,
}

impl Arguments {
    fn parse() -> Result<Arguments, Box<dyn Error>> {
        let mut arguments = Arguments { ranks: 2, compare: false, digits: None };
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(format!("{word} wants a value"));
            match word.as_str() {
                "--compare" => arguments.compare = true,
                "--ranks" => arguments.ranks = value()?.parse()?,
                "--digits" => arguments.digits = Some(value()?),
                _ => return Err(format!("{word}: expected --ranks N, --digits FILE or --compare").into()),
            }
        }
        if arguments.ranks == 0 { Err("--ranks: at least 1".into()) } else { Ok(arguments) }
    }

    fn pictures(&self) -> Result<Vec<Picture>, Box<dyn Error>> {
        match &self.digits {
            Some(path) => digits::read(path),
            None => Ok(digits::draw()),
        }
    }

    fn source(&self) -> String {
        match &self.digits {
            Some(path) => format!("handwritten digits of {path}"),
            None => "digits drawn by formula (--digits FILE for handwritten ones)".into(),
        }
    }
}
