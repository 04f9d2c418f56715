//! A halo exchange: heat in a plate, whose rows are shared among ranks. Each step needs the neighbours' border rows.
//!
//! ```sh
//! mpirun -n 4 cargo run --release -p oxccl --example halo_exchange     # or mpiexec, srun, torchrun
//! cargo run --release -p oxccl --example halo_exchange                 # without a launcher: four threads
//! ```
//!
//! The upper border is kept at 1 and the lower one at 0; left and right hang together. In the end the heat falls evenly from row to row,
//! which every rank checks.

use oxccl::api::launcher::LaunchError;
use oxccl::{Communicator, Error, ReduceOp, UniqueId};

/// Rows of the plate between its borders, and columns.
const ROWS: usize = 48;
const COLUMNS: usize = 64;
/// The steps end when no cell changes by more.
const STILL: f64 = 1e-9;
/// Between tests for that: it costs an all-reduce, which all ranks wait for.
const STEPS_BETWEEN_TESTS: usize = 100;

fn main() -> Result<(), Error> {
    match Communicator::from_env() {
        Err(Error::Launch(LaunchError::NoLauncher)) => {}
        comm => return simulate(comm?),
    }
    let (id, ranks) = (UniqueId::create()?, 4);
    std::thread::scope(|scope| {
        let spawn = |rank| scope.spawn(move || simulate(Communicator::init(&id, rank, ranks)?));
        let threads: Vec<_> = (0..ranks).map(spawn).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no rank panics"))
    })
}

/// A rank's rows, with one above and one below that are its neighbours' or the plate's border.
struct Stripe {
    first_row: usize,
    rows: usize,
    now: Vec<f64>,
    next: Vec<f64>,
}

impl Stripe {
    fn new(rank: usize, ranks: usize) -> Stripe {
        let first_row = ROWS * rank / ranks;
        let rows = ROWS * (rank + 1) / ranks - first_row;
        let mut now = vec![0.0; (rows + 2) * COLUMNS];
        if rank == 0 {
            now[..COLUMNS].fill(1.0);
        }
        Stripe { first_row, rows, next: now.clone(), now }
    }

    /// Gets the neighbours' border rows and gives them ours: four messages at once, so that no rank waits for another in turn.
    fn exchange(&mut self, comm: &Communicator) -> Result<(), Error> {
        let (rank, last) = (comm.rank(), comm.size() - 1);
        let (above, rest) = self.now.split_at_mut(COLUMNS);
        let (own, below) = rest.split_at_mut(self.rows * COLUMNS);
        oxccl::group(|group| {
            if rank > 0 {
                group.send(comm, &own[..COLUMNS], rank - 1)?;
                group.recv(comm, above, rank - 1)?;
            }
            if rank < last {
                group.send(comm, &own[(self.rows - 1) * COLUMNS..], rank + 1)?;
                group.recv(comm, below, rank + 1)?;
            }
            Ok(())
        })
    }

    /// Each cell becomes the mean of its four neighbours. The greatest change.
    fn step(&mut self) -> f64 {
        let mut change = 0f64;
        for row in 1..=self.rows {
            for column in 0..COLUMNS {
                let (left, right) = ((column + COLUMNS - 1) % COLUMNS, (column + 1) % COLUMNS);
                let at = |row: usize, column: usize| self.now[row * COLUMNS + column];
                let mean = (at(row - 1, column) + at(row + 1, column) + at(row, left) + at(row, right)) / 4.0;
                change = change.max((mean - at(row, column)).abs());
                self.next[row * COLUMNS + column] = mean;
            }
        }
        let inner = COLUMNS..(self.rows + 1) * COLUMNS;
        self.now[inner.clone()].copy_from_slice(&self.next[inner]);
        change
    }
}

fn simulate(comm: Communicator) -> Result<(), Error> {
    let (rank, ranks) = (comm.rank() as usize, comm.size() as usize);
    assert!(ranks <= ROWS, "{ranks} ranks cannot share {ROWS} rows");
    let mut stripe = Stripe::new(rank, ranks);
    let mut steps = 0;
    loop {
        let mut change = [0.0];
        for _ in 0..STEPS_BETWEEN_TESTS {
            stripe.exchange(&comm)?;
            change[0] = stripe.step();
        }
        steps += STEPS_BETWEEN_TESTS;
        comm.all_reduce_in_place(&mut change, ReduceOp::MAX)?;
        if change[0] < STILL {
            break;
        }
    }
    let mut error = [0f64];
    for row in 0..stripe.rows {
        let expected = 1.0 - (stripe.first_row + row + 1) as f64 / (ROWS + 1) as f64;
        let cells = &stripe.now[(row + 1) * COLUMNS..(row + 2) * COLUMNS];
        error[0] = cells.iter().map(|cell| (cell - expected).abs()).fold(error[0], f64::max);
    }
    comm.all_reduce_in_place(&mut error, ReduceOp::MAX)?;
    assert!(error[0] < 1e-5, "off by {}", error[0]);
    if rank == 0 {
        println!("{ranks} ranks, {steps} steps: off by at most {:.1e}", error[0]);
    }
    comm.finalize()
}
