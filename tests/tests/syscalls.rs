//! Two processes over shared memory all-reduce without the operating system.
//!
//! Each process warms up and then forbids its thread every system call by a seccomp filter. A call that only yields
//! the CPU (a rank does that when its peer is not running) is counted and skipped; any other ends the process by
//! name. The library's other threads must not have run meanwhile.
//!
//! Bounds: no call but `sched_yield` and `clock_nanosleep`, ever; and in the quietest 10,000 all-reduces of 8 bytes
//! at most 10 of those. On a busy machine ranks wait for each other's CPU, so other batches prove nothing, and a rank
//! that has waited 250 ms reports to the other what it waits for: an all-reduce's own calls show in every attempt.
#![cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]

use oxccl::{Communicator, ReduceOp, TransportKind, UniqueId};
use oxccl_tests::deadline::Deadline;
use oxccl_tests::harness::Settings;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const NAME: &str = "an_all_reduce_over_shared_memory_makes_no_system_call";
const RANK: &str = "OXCCL_TEST_SYSCALLS_RANK";
const ID: &str = "OXCCL_TEST_SYSCALLS_ID";
const RANKS: u32 = 2;
const ATTEMPTS: usize = 3;
/// All-reduces at least, by so many.
const BATCHES_MIN: usize = 20;
const BATCH: usize = 10_000;
const QUIET_MAX: u64 = 10;
/// Time limit of the search for a quiet batch.
const LOOK_MAX: Duration = Duration::from_secs(60);
/// What the library's monitor may do in all that time.
const SWITCHES_MAX: u64 = 50;

/// A process that ends with the test, however that ends.
struct Rank(Child);

impl Drop for Rank {
    fn drop(&mut self) {
        // It may have ended by itself, which the test has noticed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn an_all_reduce_over_shared_memory_makes_no_system_call() {
    match std::env::var(RANK) {
        Ok(rank) => be_rank(rank.parse().expect("a rank")),
        Err(_) => watch_ranks(),
    }
}

fn watch_ranks() {
    let _deadline = Deadline::start(NAME, Duration::from_secs(280));
    let attempts: Vec<_> = (0..ATTEMPTS).map_while(|_| attempt().err()).collect();
    assert!(attempts.len() < ATTEMPTS, "{attempts:#?}");
}

fn attempt() -> Result<(), String> {
    let config = Settings::default().config();
    let id = UniqueId::create_by(&config.bootstrap).expect("a root on the loopback interface");
    let spawn = |rank: u32| {
        let mut command = Command::new(std::env::current_exe().expect("this test's path"));
        command.args(["--exact", NAME, "--nocapture"]).env(RANK, rank.to_string());
        Rank(command.env(ID, id.to_string()).stdout(Stdio::piped()).spawn().expect("this test again"))
    };
    let mut ranks: Vec<Rank> = (0..RANKS).map(spawn).collect();
    let mut lines: Vec<_> =
        ranks.iter_mut().map(|rank| BufReader::new(rank.0.stdout.take().expect("a pipe")).lines()).collect();
    let mut line = |rank: usize, key: &str| {
        let mut seen = Vec::new();
        for line in lines[rank].by_ref().map_while(Result::ok) {
            if let Some(found) = line.strip_prefix(key) {
                return Ok(found.to_owned());
            }
            seen.push(line);
        }
        Err(format!("rank {rank} ended before it said '{key}': {seen:#?}"))
    };
    line(0, "filtered")?;
    line(1, "filtered")?;
    let before: Vec<u64> = ranks.iter().map(other_threads_switches).collect();
    let least = [line(0, "least ")?, line(1, "least ")?];
    let after: Vec<u64> = ranks.iter().map(other_threads_switches).collect();
    println!("processor given away in the quietest {BATCH} all-reduces: {least:?} times");
    println!("other threads of the process ran: {before:?} times before, {after:?} after");
    if least.iter().any(|least| least.parse::<u64>().expect("a number") > QUIET_MAX) {
        return Err(format!("no {BATCH} all-reduces were quiet: {least:?}"));
    }
    if before.iter().zip(&after).any(|(before, after)| after - before > SWITCHES_MAX) {
        return Err(format!("the library's threads ran: {before:?} times before, {after:?} after"));
    }
    Ok(())
}

/// Context switches of the process's threads, other than the rank's thread.
fn other_threads_switches(rank: &Rank) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", rank.0.id())).expect("the rank's threads");
    let mut switches = 0;
    for task in tasks.flatten() {
        let status = std::fs::read_to_string(task.path().join("status")).unwrap_or_default();
        // The filter marks the thread that is the rank.
        if status.lines().any(|line| line.starts_with("Seccomp:\t2")) {
            continue;
        }
        let counts = status.lines().filter_map(|line| line.split_once("ctxt_switches:"));
        switches += counts.filter_map(|(_, count)| count.trim().parse::<u64>().ok()).sum::<u64>();
    }
    switches
}

fn be_rank(rank: u32) {
    let _deadline = Deadline::start("a rank of the above", Duration::from_secs(180));
    let id: UniqueId = std::env::var(ID).expect("an id").parse().expect("an id");
    let config = Settings { transport: Some(TransportKind::Shm), ..Settings::default() }.config();
    let communicator = Communicator::builder().unique_id(id).rank(rank).ranks(RANKS).config(config);
    let communicator = communicator.build().expect("both ranks join");
    let reduce = |data: &mut [f32; 2]| {
        if let Err(error) = communicator.all_reduce_in_place(data, ReduceOp::MIN) {
            // A panic would make calls of its own and hide the reason.
            say(format_args!("{error}\n"));
            filter::exit();
        }
    };
    let batch = || {
        let before = GIVEN_AWAY.load(Ordering::Relaxed);
        (0..BATCH).for_each(|_| reduce(&mut [1.0, 2.0]));
        GIVEN_AWAY.load(Ordering::Relaxed) - before
    };
    batch();
    // The usual hook makes calls of its own, which would hide the reason.
    std::panic::set_hook(Box::new(|panic| say(format_args!("{panic}\n"))));
    filter::install();
    say(format_args!("filtered\n"));
    let (started, mut least) = (Instant::now(), u64::MAX);
    for batches in 1.. {
        least = least.min(batch());
        // Both stop when both have had a quiet batch, or have tried long enough.
        let is_done = least <= QUIET_MAX && batches >= BATCHES_MIN || started.elapsed() > LOOK_MAX;
        let mut both_done = [f32::from(is_done); 2];
        reduce(&mut both_done);
        if both_done == [1.0; 2] {
            break;
        }
    }
    say(format_args!("least {least}\n"));
    // If this rank ended, the other would learn it in its last operation.
    filter::sleep_for_ever();
}

/// Calls that gave the processor away.
static GIVEN_AWAY: AtomicU64 = AtomicU64::new(0);

/// Prints without a lock or an allocation, which may need system calls.
fn say(text: std::fmt::Arguments<'_>) {
    let mut buffer = [0u8; 512];
    let mut rest = &mut buffer[..];
    rest.write_fmt(text).expect("a short line");
    let len = 512 - rest.len();
    filter::write(&buffer[..len]);
}

/// A filter on the system calls of a thread, by which each becomes a signal.
mod filter {
    use super::{GIVEN_AWAY, Ordering, say};
    use libc::{
        SYS_clock_nanosleep, SYS_exit_group, SYS_ppoll, SYS_rt_sigreturn, SYS_sched_yield, SYS_write,
    };
    use libc::{c_int, c_long, c_void, siginfo_t, sock_filter, sock_fprog};

    /// What the test itself needs.
    const ALLOWED: [c_long; 4] = [SYS_rt_sigreturn, SYS_write, SYS_exit_group, SYS_ppoll];

    /// Where Linux puts the number of the call in the signal's description (`si_syscall`, after `si_call_addr`).
    const SYSCALL_OFFSET: usize = if cfg!(target_pointer_width = "64") { 24 } else { 16 };

    extern "C" fn caught(_signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
        // SAFETY: Linux fills in this field for the signal of a filter.
        let number = unsafe { *info.cast::<u8>().add(SYSCALL_OFFSET).cast::<c_int>() };
        if [SYS_sched_yield, SYS_clock_nanosleep].contains(&c_long::from(number)) {
            GIVEN_AWAY.fetch_add(1, Ordering::Relaxed);
            // SAFETY: the context is that of the interrupted thread, whose registers it restores on return.
            unsafe { succeed(&mut *context.cast()) };
            return;
        }
        say(format_args!("system call {number} was made by an all-reduce\n"));
        exit();
    }

    /// Ends the process without a call that the filter forbids.
    pub fn exit() -> ! {
        // SAFETY: runs nothing else.
        unsafe { libc::_exit(3) }
    }

    /// Makes the call that was skipped return 0. Otherwise it would return its own number, and `std`'s sleep panics on a result
    /// that is neither success nor an interruption.
    fn succeed(context: &mut libc::ucontext_t) {
        #[cfg(target_arch = "x86_64")]
        {
            context.uc_mcontext.gregs[libc::REG_RAX as usize] = 0;
        }
        #[cfg(target_arch = "aarch64")]
        {
            context.uc_mcontext.regs[0] = 0;
        }
    }

    /// Forbids this thread every system call but those that the test needs.
    pub fn install() {
        let jump = |code: u32, k: u32, jt: u8, jf: u8| sock_filter { code: code as u16, jt, jf, k };
        let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
        let mut program = vec![jump(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0)];
        for (i, number) in ALLOWED.iter().enumerate() {
            let skip = (ALLOWED.len() - i) as u8;
            program.push(jump(equal, *number as u32, skip, 0));
        }
        program.push(jump(libc::BPF_RET, libc::SECCOMP_RET_TRAP, 0, 0));
        program.push(jump(libc::BPF_RET, libc::SECCOMP_RET_ALLOW, 0, 0));
        let program = sock_fprog { len: program.len() as u16, filter: program.leak().as_mut_ptr() };
        // SAFETY: the action is whole, and the handler does only what a signal handler may: atomics, write, _exit.
        let caught = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = caught as extern "C" fn(c_int, *mut siginfo_t, *mut c_void) as usize;
            action.sa_flags = libc::SA_SIGINFO;
            libc::sigaction(libc::SIGSYS, &action, std::ptr::null_mut())
        };
        assert_eq!(caught, 0);
        // SAFETY: takes rights away from this thread and touches no memory.
        let unprivileged = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
        assert_eq!(unprivileged, 0);
        // SAFETY: the program is valid and stays.
        let filtered = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) };
        assert_eq!(filtered, 0, "this kernel has no seccomp filters: {}", std::io::Error::last_os_error());
    }

    /// To standard output.
    pub fn write(bytes: &[u8]) {
        // SAFETY: the bytes are valid. A short or failed write shows as a line that never comes.
        unsafe { libc::write(1, bytes.as_ptr().cast(), bytes.len()) };
    }

    /// Until the process is killed.
    pub fn sleep_for_ever() -> ! {
        loop {
            // SAFETY: no descriptors, no time, no mask.
            unsafe { libc::syscall(SYS_ppoll, 0usize, 0usize, 0usize, 0usize, 0usize) };
        }
    }
}
