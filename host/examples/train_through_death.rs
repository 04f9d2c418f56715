//! Training that goes on when a process dies: the survivors shrink, a new process takes the free place, and the losses are, to the last
//! bit, those of a run in which nobody died.
//!
//! ```sh
//! cargo run --release -p oxccl --example train_through_death                          # 4 processes, of which rank 1 is killed
//! cargo run --release -p oxccl --example train_through_death -- --ranks 8 --kill 0
//! ```
//!
//! The program trains twice, without a death and with one, and compares. What it shows, in the order in which a reader meets it below:
//! 1. a step that changes nothing until its last all-reduce has succeeded: one that fails can be redone;
//! 2. after a death, [`Communicator::shrink_to_living`] makes a communicator of the ranks that live;
//! 3. [`Communicator::start_grow`] takes in a process that was started in the place of the dead one;
//! 4. everyone gets the state of a rank that is farthest: some may have finished the step in which others failed;
//! 5. [`deterministic`](oxccl::api::Builder::deterministic) reductions add by rank, so that it does not matter which process has a rank.
//!
//! The model and the data are those of `data_parallel`.

#[path = "data_parallel/digits.rs"]
#[allow(dead_code, reason = "data_parallel reads a file, too")]
mod digits;
#[path = "data_parallel/model.rs"]
mod model;
#[path = "data_parallel/processes.rs"]
#[allow(dead_code, reason = "the supervisor below reads what every rank prints")]
mod processes;

use digits::Picture;
use model::{Model, PARAMETERS};
use oxccl::{Communicator, Fault, ReduceOp, UniqueId};
use std::collections::BTreeMap;
use std::error::Error;
use std::io::{BufRead, BufReader};
use std::process::{Child, ExitCode, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

/// Pictures of a step, over all ranks. Divides by every number of ranks that is used here.
const BATCH: usize = 64;
const EPOCHS: usize = 12;
const LEARNING_RATE: f32 = 0.3;
/// Gradients per all-reduce.
const BUCKET: usize = 1024;
/// A rank is killed in the epoch after this one.
const KILL_AFTER_EPOCH: usize = 4;

/// How child processes learn who they are: "rank,ranks,unique id".
const MEMBER: &str = "TRAIN_THROUGH_DEATH_MEMBER";

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    let outcome = match std::env::var(MEMBER) {
        Ok(member) => join(&member).and_then(|(comm, ranks)| train(comm, ranks)).map(|()| ExitCode::SUCCESS),
        Err(_) => compare(),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("train_through_death: {error}");
        ExitCode::FAILURE
    })
}

/// The communicator of a child process, and how many ranks it is to have.
fn join(member: &str) -> Result<(Communicator, u32)> {
    let [rank, ranks, id] = member.split(',').collect::<Vec<_>>()[..] else {
        return Err(format!("{MEMBER}: rank,ranks,id was expected").into());
    };
    let (rank, ranks, id): (u32, u32, UniqueId) = (rank.parse()?, ranks.parse()?, id.parse()?);
    let comm = Communicator::builder().unique_id(id).rank(rank).ranks(ranks).deterministic(true).build()?;
    Ok((comm, ranks))
}

/// What training has come to: the same on every rank after as many steps.
#[derive(Clone)]
struct State {
    model: Model,
    /// Steps done, over all epochs.
    steps: u64,
    /// Sum of the losses of the epoch's steps so far.
    loss_sum: f64,
}

/// Trains to the end through the death of any rank, as long as one rank of `ranks` lives.
fn train(mut comm: Communicator, ranks: u32) -> Result<()> {
    if !BATCH.is_multiple_of(ranks as usize) {
        return Err(format!("{ranks} ranks cannot share batches of {BATCH} evenly").into());
    }
    let pictures = digits::draw();
    let (training, testing) = pictures.split_at(pictures.len() * 5 / 6);
    let mut state = State { model: Model::random(u64::from(comm.rank())), steps: 0, loss_sum: 0.0 };
    loop {
        let error = match go_on(&comm, &mut state, training, testing) {
            Ok(()) => return Ok(comm.finalize()?),
            Err(error) => error,
        };
        if !matches!(error.fault(), Some(Fault::PeerDied { .. })) {
            return Err(error.into());
        }
        println!("step {}: {error}", state.steps);
        comm = replace_the_dead(&comm, ranks)?;
    }
}

/// A communicator of the ranks that live and of new ones. This process prints a line for each new rank; the supervisor reads it and
/// starts a process.
fn replace_the_dead(comm: &Communicator, ranks: u32) -> Result<Communicator> {
    let living = comm.shrink_to_living()?;
    let id = if living.rank() == 0 { Some(UniqueId::create()?) } else { None };
    if let Some(id) = &id {
        (living.size()..ranks).for_each(|rank| println!("start {rank},{ranks},{id}"));
    }
    Ok(living.start_grow(id, ranks)?.wait()?)
}

/// Trains from wherever the farthest rank is. Prints one line per epoch: number, mean loss, share of the test pictures recognised.
fn go_on(
    comm: &Communicator,
    state: &mut State,
    training: &[Picture],
    testing: &[Picture],
) -> std::result::Result<(), oxccl::Error> {
    catch_up(comm, state)?;
    let steps_of_epoch = training.len() / BATCH;
    let share = BATCH / comm.size() as usize;
    while state.steps < (EPOCHS * steps_of_epoch) as u64 {
        let (epoch, step) =
            (state.steps as usize / steps_of_epoch + 1, state.steps as usize % steps_of_epoch);
        let order = digits::shuffled(training.len(), epoch as u64);
        // The share of the batch depends on the rank only: a new process takes over the share of the dead one.
        let mine = &order[step * BATCH + comm.rank() as usize * share..][..share];
        // The loss travels behind the gradient: of a rank that dies nothing is missing.
        let mut slopes = vec![0f32; PARAMETERS + 1];
        let (gradient, loss) = slopes.split_at_mut(PARAMETERS);
        loss[0] = state.model.gradient(mine.iter().map(|&at| &training[at]), gradient) as f32;
        average(comm, &mut slopes)?;

        // Nothing has changed up to here, and nothing fails from here on.
        state.model.descend(&slopes[..PARAMETERS], LEARNING_RATE);
        state.loss_sum += f64::from(slopes[PARAMETERS]);
        state.steps += 1;
        if step + 1 == steps_of_epoch {
            let known = testing.iter().filter(|picture| state.model.digit(picture) == picture.digit).count();
            let loss = state.loss_sum / steps_of_epoch as f64;
            println!("epoch {epoch} {loss:e} {:.4}", known as f64 / testing.len() as f64);
            state.loss_sum = 0.0;
        }
    }
    Ok(())
}

/// Gives every rank the state of the first that has done the most steps. At first that is rank 0's, whose parameters count.
fn catch_up(comm: &Communicator, state: &mut State) -> std::result::Result<(), oxccl::Error> {
    let mut steps = vec![0u64; comm.size() as usize];
    comm.all_gather(&[state.steps], &mut steps)?;
    let most = steps.iter().copied().max().unwrap_or(0);
    let root = steps.iter().position(|steps| *steps == most).unwrap_or(0) as u32;
    // A copy, for a rank may die meanwhile.
    let mut theirs = state.clone();
    let mut loss_sum = [state.loss_sum];
    oxccl::group(|group| {
        group.broadcast_in_place(comm, theirs.model.parameters_mut(), root)?;
        group.broadcast_in_place(comm, &mut loss_sum, root)
    })?;
    *state = State { steps: most, loss_sum: loss_sum[0], ..theirs };
    Ok(())
}

/// Makes every rank's values the mean of all ranks' values: one all-reduce per bucket, all of them in one group.
fn average(comm: &Communicator, values: &mut [f32]) -> std::result::Result<(), oxccl::Error> {
    oxccl::group(|group| {
        for bucket in values.chunks_mut(BUCKET) {
            group.all_reduce_in_place(comm, bucket, ReduceOp::AVG)?;
        }
        Ok(())
    })
}

/// Starts processes, kills one, and starts others in the place of the dead: a stand-in for a cluster's scheduler.
struct Supervisor {
    children: Vec<Child>,
    /// Told what a child prints, and when it has ended.
    printed: Sender<(usize, Option<String>)>,
}

impl Supervisor {
    fn start(&mut self, member: &str) -> Result<()> {
        let mut child = processes::start(Stdio::piped(), |command| {
            command.env(MEMBER, member);
        })?;
        let (output, printed, number) = (child.stdout.take(), self.printed.clone(), self.children.len());
        self.children.push(child);
        std::thread::spawn(move || {
            for text in output
                .into_iter()
                .flat_map(|output| BufReader::new(output).lines().map_while(|line| line.ok()))
            {
                let _ = printed.send((number, Some(text)));
            }
            let _ = printed.send((number, None));
        });
        Ok(())
    }
}

/// Trains with `ranks` processes, of which `kill` is killed in the middle of an epoch. The lines of all epochs.
fn run(ranks: u32, kill: Option<u32>) -> Result<BTreeMap<usize, String>> {
    let (printed, lines) = channel();
    let mut supervisor = Supervisor { children: Vec::new(), printed };
    let id = UniqueId::create()?;
    (0..ranks).try_for_each(|rank| supervisor.start(&format!("{rank},{ranks},{id}")))?;
    let (mut epochs, mut running, mut was_killed) = (BTreeMap::new(), ranks as usize, false);
    while running > 0 {
        let (number, text) = lines.recv()?;
        let Some(text) = text else {
            running -= 1;
            continue;
        };
        match text.split_once(' ') {
            Some(("start", member)) => {
                println!(
                    "process {number} shrank; a new process becomes rank {}",
                    member.split(',').next().unwrap_or("?")
                );
                supervisor.start(member)?;
                running += 1;
            }
            Some(("epoch", line)) => {
                let (epoch, line) = line.split_once(' ').ok_or("an epoch without a loss")?;
                let first = epochs.entry(epoch.parse()?).or_insert_with(|| line.to_owned());
                if first != line {
                    return Err(
                        format!("epoch {epoch}: process {number} has {line}, another one {first}").into()
                    );
                }
            }
            _ => println!("process {number}: {text}"),
        }
        if let Some(victim) = kill.filter(|_| !was_killed && epochs.contains_key(&KILL_AFTER_EPOCH)) {
            // Not between two epochs, but somewhere in the next.
            std::thread::sleep(Duration::from_millis(2));
            supervisor.children[victim as usize].kill()?;
            was_killed = true;
            println!("process {victim} killed after epoch {}", epochs.len());
        }
    }
    for (number, child) in supervisor.children.iter_mut().enumerate() {
        let status = child.wait()?;
        if !status.success() && Some(number as u32) != kill {
            return Err(format!("process {number}: {status}").into());
        }
    }
    if epochs.len() == EPOCHS {
        Ok(epochs)
    } else {
        Err(format!("{} epochs of {EPOCHS}", epochs.len()).into())
    }
}

/// Trains with and without a death, and compares the losses bit by bit.
fn compare() -> Result<ExitCode> {
    let (mut ranks, mut kill) = (4, 1);
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let value: u32 = words.next().ok_or(format!("{word} wants a value"))?.parse()?;
        match word.as_str() {
            "--ranks" => ranks = value,
            "--kill" => kill = value,
            _ => return Err(format!("{word}: expected --ranks N or --kill RANK").into()),
        }
    }
    if ranks < 2 || kill >= ranks || !BATCH.is_multiple_of(ranks as usize) {
        return Err(format!(
            "--ranks {ranks} --kill {kill}: 2 to {BATCH} ranks that share {BATCH} evenly, one of them killed"
        )
        .into());
    }
    let undisturbed = run(ranks, None)?;
    let survived = run(ranks, Some(kill))?;
    println!("epoch  loss and share recognised, undisturbed and with a death");
    for (epoch, line) in &undisturbed {
        println!("{epoch:>5}  {line}  {}", survived[epoch]);
    }
    let is_same = undisturbed == survived;
    println!("{}", if is_same { "the same to the last bit: OK" } else { "not the same: FAILED" });
    Ok(if is_same { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
