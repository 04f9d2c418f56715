//! The example that trains through a death: the losses are those of a run in which nobody died, to the last bit.

use std::process::Command;

/// The example compares the two runs itself; that a rank died in the middle, and that a new process came, its lines say.
#[test]
fn training_goes_on_through_a_death_with_the_same_bits() {
    for (ranks, killed) in [("4", "1"), ("2", "0")] {
        let output = Command::new(env!("CARGO_BIN_EXE_oxccl-train-through-death"))
            .args(["--ranks", ranks, "--kill", killed])
            .env("NCCL_SOCKET_IFNAME", "lo")
            .env("NCCL_RAS_ENABLE", "0")
            .output()
            .expect("the example starts");
        let text = String::from_utf8_lossy(&output.stdout);
        let whole = format!("{text}{}", String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{whole}");
        for line in
            ["killed after epoch", "shrank; a new process becomes rank", "the same to the last bit: OK"]
        {
            assert!(text.contains(line), "no \"{line}\": {whole}");
        }
        let steps =
            text.lines().filter_map(|line| line.split_once(": step ")?.1.split(':').next()?.parse().ok());
        let steps: Vec<u64> = steps.collect();
        // Every survivor says in which step it lost the dead one: after the first, and before the last of 12 epochs of 23.
        assert_eq!(steps.len(), ranks.parse::<usize>().unwrap() - 1, "{whole}");
        assert!(steps.iter().all(|step| (1..12 * 23 - 1).contains(step)), "{whole}");
    }
}
