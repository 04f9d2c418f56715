//! Tuning files come from users, who edit them, and from other releases.

use oxccl::Func;
use oxccl::plan::tuning::TUNED;
use oxccl::plan::{offered, read_tune_file};

/// Any text is refused by an error that names a line of it, or gives tables that survive writing and name only what there is.
pub fn tune_file(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let file = match read_tune_file(text) {
        Ok(file) => file,
        Err(error) => {
            assert!(error.line >= 1 && error.line <= text.split('\n').count() + 1, "{error}");
            assert!(!error.field.is_empty() && error.to_string().contains("line"));
            return;
        }
    };
    let again = read_tune_file(&file.to_text());
    assert_eq!(again.as_ref().map(|again| again.key()), Ok(file.key()));
    for section in &file.sections {
        let table = file.table(section.head.backend, section.head.ranks).expect("every table is found");
        for func in TUNED {
            let rows: Vec<_> = table.rows(func).collect();
            assert!(rows.is_sorted_by(|a, b| a.max_bytes < b.max_bytes));
            assert!(rows.iter().all(|row| offered(section.head.backend, func).has(row.candidate)));
            assert_eq!(
                table.row(func, u64::MAX).is_some(),
                rows.last().is_some_and(|row| row.max_bytes == u64::MAX)
            );
        }
        assert!(table.row(Func::Send, 0).is_none());
    }
}
