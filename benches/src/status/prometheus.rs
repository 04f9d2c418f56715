//! What processes answered, as Prometheus reads it: OpenMetrics text.

use super::metrics::{Kind, Label, Metric, Number, Point, Unit, metrics};
use oxccl::status::ProcessReport;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit as Suffix};
use std::fmt;
use std::sync::atomic::AtomicU64;

type Labels = Vec<(&'static str, String)>;

fn labels(point: &Point) -> Labels {
    let text = |label: &Label| match label {
        Label::Text(text) => text.clone(),
        Label::Number(number) => number.to_string(),
    };
    point.labels.iter().map(|(name, label)| (*name, text(label))).collect()
}

/// Registers a metric with its values.
fn register(registry: &mut Registry, metric: &Metric) {
    let Metric { name, help, unit, kind, points } = metric;
    let is_real = points.iter().any(|point| matches!(point.value, Number::Real(_)));
    let (whole, real) =
        (Family::<Labels, Counter>::default(), Family::<Labels, Counter<f64, AtomicU64>>::default());
    let gauge = Family::<Labels, Gauge>::default();
    for point in points {
        let labels = labels(point);
        match (point.value, kind) {
            (Number::Whole(value), Kind::Counter) => _ = whole.get_or_create(&labels).inc_by(value),
            (Number::Whole(value), Kind::Gauge) => _ = gauge.get_or_create(&labels).set(value as i64),
            (Number::Real(value), _) => _ = real.get_or_create(&labels).inc_by(value),
        }
    }
    let suffix = match unit {
        Some(Unit::Bytes) => Some(Suffix::Bytes),
        Some(Unit::Seconds) => Some(Suffix::Seconds),
        None => None,
    };
    match (suffix, kind) {
        (Some(suffix), _) if is_real => registry.register_with_unit(*name, *help, suffix, real),
        (Some(suffix), _) => registry.register_with_unit(*name, *help, suffix, whole),
        (None, Kind::Counter) => registry.register(*name, *help, whole),
        (None, Kind::Gauge) => registry.register(*name, *help, gauge),
    }
}

/// The whole of it.
///
/// # Errors
/// Never, as far as is known: it is written to memory.
pub fn text(processes: &[ProcessReport]) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("oxccl");
    metrics(processes).iter().for_each(|metric| register(&mut registry, metric));
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::super::metrics::tests::processes;
    use super::*;

    #[test]
    fn a_peer_has_its_lines_with_help_type_and_labels() {
        let text = text(&processes()).unwrap();
        let labels = r#"{comm="d\"p",rank="0",pid="40",peer="1",transport="shm"}"#;
        for line in [
            "# HELP oxccl_peer_sent_bytes Bytes sent to the peer.".to_owned(),
            "# TYPE oxccl_peer_sent_bytes counter".to_owned(),
            format!("oxccl_peer_sent_bytes_total{labels} 36"),
            format!("oxccl_peer_received_bytes_total{labels} 32"),
            format!("oxccl_peer_waited_seconds_total{labels} 1.5"),
            format!("oxccl_peer_stalls_total{labels} 1"),
            r#"oxccl_stalls_total{comm="d\"p",rank="0",pid="40"} 2"#.to_owned(),
            r#"oxccl_function_calls_total{comm="d\"p",rank="0",pid="40",function="all_reduce"} 9"#.to_owned(),
            format!("oxccl_peer_outages_total{labels} 3"),
            format!("oxccl_peer_unreachable_seconds_total{labels} 7.5"),
            format!("oxccl_peer_reconnects_total{labels} 5"),
            format!("oxccl_peer_retries_total{labels} 6"),
            format!("oxccl_peer_retransmits_total{labels} 9"),
            r#"oxccl_refusals_total{comm="d\"p",rank="0",pid="40"} 4"#.to_owned(),
            "# EOF".to_owned(),
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
    }
}
