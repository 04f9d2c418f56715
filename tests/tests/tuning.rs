//! Restrictions in NCCL's syntax, and tables that were measured, seen from communicators.

use oxccl::plan::tuning::{Candidate, Forced, Reason};
use oxccl::{Algorithm, Communicator, Config, DataType, Error, Func, Protocol, ReduceOp, UniqueId};
use oxccl_tests::harness::{Settings, on_threads};
use std::io::Write;

const TABLES: &str = r#"
version = 1
[[table]]
backend = "cpu"
ranks = 2
[[table.choice]]
collective = "all_reduce"
max_bytes = 64
algorithm = "tree"
protocol = "ll"
[[table.choice]]
collective = "all_reduce"
max_bytes = 4096
algorithm = "ring"
protocol = "ll128"
[[table.choice]]
collective = "all_gather"
algorithm = "ring"
protocol = "ll"
"#;

fn file(text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

/// All ranks of a communicator, rank r with `configs[r]`.
fn build(configs: &[Config]) -> Vec<Result<Communicator, Error>> {
    let id = UniqueId::create_by(&configs[0].bootstrap).unwrap();
    let nranks = configs.len() as u32;
    on_threads(configs.iter().enumerate(), |(rank, config)| {
        let builder = Communicator::builder().unique_id(id).rank(rank as u32).ranks(nranks);
        builder.config(config.clone()).build()
    })
}

fn tuned(path: &std::path::Path) -> Config {
    Config { tune_file: Some(path.to_owned()), ..Settings::default().config() }
}

fn choice(communicator: &Communicator, func: Func, count: u64) -> (Candidate, Reason) {
    let explanation = communicator.explain(func, DataType::F32, count).unwrap().expect("a collective");
    let marked = explanation.to_string().lines().find(|line| line.starts_with('*')).map(str::to_owned);
    let chosen = explanation.choice.candidate;
    assert!(marked.is_some_and(|line| line.contains(chosen.algorithm.name())), "{explanation}");
    (chosen, explanation.choice.reason)
}

#[test]
fn a_communicator_follows_the_table_for_its_number_of_ranks() {
    let file = file(TABLES);
    let configs = [tuned(file.path()), tuned(file.path())];
    let mut ranks: Vec<Communicator> = build(&configs).into_iter().map(Result::unwrap).collect();
    let tree = Candidate::new(Algorithm::Tree, Protocol::LL);
    let ring = Candidate::new(Algorithm::Ring, Protocol::LL128);
    for communicator in &ranks {
        assert_eq!(choice(communicator, Func::AllReduce, 16), (tree, Reason::Tuned { row: 0 }));
        assert_eq!(choice(communicator, Func::AllReduce, 17), (ring, Reason::Tuned { row: 1 }));
        let beyond = choice(communicator, Func::AllReduce, 1025);
        assert_eq!(beyond.0, Candidate::new(Algorithm::OneShot, Protocol::Simple));
        assert!(matches!(beyond.1, Reason::Measured { .. }), "{beyond:?}");
        // Sizes are those of the larger buffer.
        assert_eq!(choice(communicator, Func::AllGather, 1 << 20).0.protocol, Protocol::LL);
        assert!(communicator.explain(Func::Send, DataType::F32, 1).unwrap().is_none());
    }
    let sums = on_threads(ranks.iter_mut(), |communicator| {
        [8, 16, 17, 1024, 1025, 30_000].map(|count| {
            let send = vec![communicator.rank() as f32 + 1.0; count];
            let mut recv = vec![0.0f32; count];
            communicator.all_reduce(&send, &mut recv, ReduceOp::SUM).unwrap();
            recv.iter().all(|sum| *sum == 3.0)
        })
    });
    assert_eq!(sums, [[true; 6]; 2]);

    let three = [tuned(file.path()), tuned(file.path()), tuned(file.path())];
    for communicator in build(&three) {
        let (_, reason) = choice(&communicator.unwrap(), Func::AllReduce, 16);
        assert!(matches!(reason, Reason::Measured { .. }), "{reason:?}");
    }
}

#[test]
fn what_the_user_restricts_goes_before_the_table() {
    let file = file(TABLES);
    let forced = Forced::default().with_algorithms("^tree").unwrap();
    let config = Config { forced, ..tuned(file.path()) };
    for communicator in build(&[config.clone(), config]) {
        let (chosen, reason) = choice(&communicator.unwrap(), Func::AllReduce, 16);
        assert_eq!(chosen, Candidate::new(Algorithm::OneShot, Protocol::Simple));
        assert!(matches!(reason, Reason::Measured { .. }), "{reason:?}");
    }
}

#[test]
fn ranks_with_different_tables_are_refused_by_name() {
    let (one, other) = (file(TABLES), file(&TABLES.replace("max_bytes = 64", "max_bytes = 65")));
    let same = file(&format!("# Comments may differ.\n{TABLES}"));
    let failed: Vec<String> = build(&[tuned(one.path()), tuned(same.path()), tuned(other.path())])
        .into_iter()
        .map(|built| built.expect_err("refused").to_string())
        .collect();
    for error in failed {
        assert!(error.contains("rank 2 has other settings") && error.contains("OXCCL_TUNE_FILE"), "{error}");
    }
}

#[test]
fn ranks_with_different_settings_are_told_which_and_both_values() {
    let base = Settings::default().config();
    let forced = base.forced.with_algorithms("allreduce:^tree").unwrap();
    let other = Config { buffer_bytes: 65536, forced, runtime_connect: false, ..base.clone() };
    let buffer = format!("NCCL_BUFFSIZE: '65536' where rank 0 has '{}'", base.buffer_bytes);
    let failed: Vec<String> = build(&[base.clone(), base.clone(), other])
        .into_iter()
        .map(|built| built.expect_err("refused").to_string())
        .collect();
    for error in failed {
        let expected = [
            "rank 2 has other settings than rank 0:",
            "NCCL_ALGO: 'allreduce:^tree' where rank 0 has 'unset'",
            &buffer,
            "NCCL_RUNTIME_CONNECT: '0' where rank 0 has '1'",
        ];
        assert!(expected.iter().all(|part| error.contains(part)), "{error}");
        assert!(!error.contains("NCCL_PROTO") && !error.contains("OXCCL_TRANSPORT"), "{error}");
    }
}

#[test]
fn a_file_that_cannot_be_used_is_named_with_line_and_field() {
    let refused = |config: Config| {
        let alone = Communicator::builder().rank(0).ranks(1).config(config).build();
        alone.expect_err("refused").to_string()
    };
    let odd = file(&TABLES.replace("\"tree\"", "\"pat\""));
    let error = refused(tuned(odd.path()));
    assert!(error.contains(odd.path().to_str().unwrap()), "{error}");
    assert!(
        error.contains("line 9, algorithm: expected tree, ring, oneshot, twoshot, collnetchain, collnetdirect, twolevel or doubling"),
        "{error}"
    );
    let none = refused(tuned(std::path::Path::new("/does/not/exist.toml")));
    assert!(none.starts_with("OXCCL_TUNE_FILE: tuning file /does/not/exist.toml: No such file"), "{none}");
    let long = file(&"#".repeat((1 << 20) + 1));
    assert!(refused(tuned(long.path())).contains("longer than 1048576 bytes"));
    let endless = refused(tuned(std::path::Path::new("/dev/zero")));
    assert!(endless.contains("/dev/zero: not a regular file"), "{endless}");
}

#[test]
fn an_order_that_no_rank_can_obey_is_an_error_that_says_what_is_possible() {
    let forced = Forced::default().with_algorithms("ring;broadcast:tree").unwrap();
    let config = Config { forced, ..Settings::default().config() };
    let error = Communicator::builder().rank(0).ranks(1).config(config).build().expect_err("refused");
    assert!(matches!(error, Error::Impossible(_)), "{error:?}");
    let said = error.to_string();
    assert!(said.starts_with("NCCL_ALGO: broadcast has none of what they leave"), "{said}");
    assert!(said.ends_with("possible are ring ll, ring ll128, ring simple"), "{said}");
}
