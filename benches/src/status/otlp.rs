//! Layer: status / otlp.
//! Takes: what processes answered.
//! Gives: its counters pushed to an OpenTelemetry collector: OTLP over HTTP, in Protocol Buffers. The types are those of `opentelemetry-proto`.
//! Never: waits longer than [`PATIENCE`], speaks TLS, goes through a proxy, or keeps anything between two pushes.
//!
//! The SDK of OpenTelemetry counts what happens in its own process. What is pushed here has been counted elsewhere, since a time that is known.

use super::metrics::{Kind, Label, Number, Point, Unit, metrics};
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Metric, NumberDataPoint, ResourceMetrics, ScopeMetrics, Sum,
    number_data_point,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use oxccl::status::ProcessReport;
use prost::Message;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// How long the collector has for one push, names and connection included.
const PATIENCE: Duration = Duration::from_secs(5);
/// The path for metrics where an endpoint names none.
const PATH: &str = "/v1/metrics";
/// Of what a collector answers.
const ANSWER_BYTES_MAX: u64 = 1 << 16;

/// Where a collector listens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Endpoint(String);

/// Why the counters have not arrived.
#[derive(Debug, thiserror::Error)]
pub enum PushError {
    /// Nobody answers there, or nothing that can be read.
    #[error("pushing to {endpoint}: {source}")]
    Unreachable { endpoint: Endpoint, source: Box<ureq::Error> },
    /// It does not want them.
    #[error("{endpoint} answers {status}: is it an OTLP receiver for HTTP?{}{text}", if text.is_empty() { "" } else { " " })]
    Refused { endpoint: Endpoint, status: u16, text: String },
    /// It does not want all of them.
    #[error("{endpoint} has rejected {count} values: {text}")]
    Rejected { endpoint: Endpoint, count: i64, text: String },
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Endpoint {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Endpoint, &'static str> {
        if text.starts_with("https://") {
            return Err("this tool has no TLS: push to a collector on this host, which may send it on");
        }
        let rest = text.strip_prefix("http://").ok_or("http://HOST:PORT was expected")?;
        let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        // The colons of [::1] are none before a port.
        let port = host.rsplit_once(':').filter(|_| !host.ends_with(']')).map(|(_, port)| port);
        let is_port = port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0));
        if host.is_empty() || host.contains(char::is_whitespace) || !is_port {
            return Err("http://HOST:PORT was expected");
        }
        Ok(Endpoint(if path.len() <= 1 { format!("http://{host}{PATH}") } else { text.to_owned() }))
    }
}

impl Endpoint {
    /// Pushes the counters of these processes. Returns how many values there were.
    pub fn push(&self, processes: &[ProcessReport]) -> Result<usize, PushError> {
        let (request, count) = request(processes);
        let unreachable =
            |source| PushError::Unreachable { endpoint: self.clone(), source: Box::new(source) };
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(PATIENCE))
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(None)
            .user_agent(concat!("oxccl/", env!("CARGO_PKG_VERSION")));
        let agent = config.build().new_agent();
        let post = agent.post(&self.0).header("content-type", "application/x-protobuf");
        let mut answer = post.send(&request.encode_to_vec()[..]).map_err(unreachable)?;
        let status = answer.status();
        let body =
            answer.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_vec().map_err(unreachable)?;
        if !status.is_success() {
            // Text, or a message that begins with its length.
            let text = String::from_utf8_lossy(&body).chars().filter(|c| !c.is_control()).take(200).collect();
            return Err(PushError::Refused { endpoint: self.clone(), status: status.as_u16(), text });
        }
        // Some answer nothing, or JSON.
        let partial =
            ExportMetricsServiceResponse::decode(&body[..]).ok().and_then(|said| said.partial_success);
        match partial {
            Some(partial) if partial.rejected_data_points > 0 => Err(PushError::Rejected {
                endpoint: self.clone(),
                count: partial.rejected_data_points,
                text: partial.error_message,
            }),
            _ => Ok(count),
        }
    }
}

/// What is said, and how many values it has: a resource for each process.
fn request(processes: &[ProcessReport]) -> (ExportMetricsServiceRequest, usize) {
    let mut count = 0;
    let mut of_process = |process: &ProcessReport| {
        let metrics: Vec<Metric> = metrics([process])
            .iter()
            .filter(|found| !found.points.is_empty())
            .map(|found| metric(found, process.time_ns))
            .collect();
        count += metrics.iter().map(points).sum::<usize>();
        let scope = InstrumentationScope {
            name: "oxccl".into(),
            version: process.version.clone(),
            ..Default::default()
        };
        let attributes = vec![
            attribute("service.name", Value::StringValue(process.program.clone())),
            attribute("host.name", Value::StringValue(process.host.clone())),
            attribute("process.pid", Value::IntValue(process.pid.into())),
        ];
        ResourceMetrics {
            resource: Some(Resource { attributes, ..Default::default() }),
            scope_metrics: vec![ScopeMetrics { scope: Some(scope), metrics, ..Default::default() }],
            ..Default::default()
        }
    };
    let resource_metrics = processes.iter().map(&mut of_process).collect();
    (ExportMetricsServiceRequest { resource_metrics }, count)
}

fn points(metric: &Metric) -> usize {
    match &metric.data {
        Some(Data::Sum(sum)) => sum.data_points.len(),
        Some(Data::Gauge(gauge)) => gauge.data_points.len(),
        _ => 0,
    }
}

fn attribute(key: &str, value: Value) -> KeyValue {
    KeyValue { key: key.into(), value: Some(AnyValue { value: Some(value) }), ..Default::default() }
}

fn metric(found: &super::metrics::Metric, time_ns: u64) -> Metric {
    let point = |point: &Point| NumberDataPoint {
        attributes: point.labels.iter().map(|(name, label)| attribute(name, value(label))).collect(),
        start_time_unix_nano: if found.kind == Kind::Counter { point.began_ns } else { 0 },
        time_unix_nano: time_ns,
        value: Some(match point.value {
            Number::Whole(value) => number_data_point::Value::AsInt(i64::try_from(value).unwrap_or(i64::MAX)),
            Number::Real(value) => number_data_point::Value::AsDouble(value),
        }),
        ..Default::default()
    };
    let data_points = found.points.iter().map(point).collect();
    let data = match found.kind {
        Kind::Gauge => Data::Gauge(Gauge { data_points }),
        Kind::Counter => Data::Sum(Sum {
            data_points,
            aggregation_temporality: AggregationTemporality::Cumulative.into(),
            is_monotonic: true,
        }),
    };
    let unit = match found.unit {
        Some(Unit::Bytes) => "By",
        Some(Unit::Seconds) => "s",
        None => "",
    };
    Metric {
        name: format!("oxccl.{}", found.name),
        description: found.help.into(),
        unit: unit.into(),
        data: Some(data),
        ..Default::default()
    }
}

fn value(label: &Label) -> Value {
    match label {
        Label::Text(text) => Value::StringValue(text.clone()),
        Label::Number(number) => Value::IntValue((*number).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::metrics::tests::processes;
    use super::*;
    use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsPartialSuccess;
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::thread::JoinHandle;
    use std::time::Instant;

    /// A collector for one request, which it gives back with its first line and content type.
    fn collector(answer: Vec<u8>) -> (Endpoint, JoinHandle<(String, String, Vec<u8>)>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let thread = std::thread::spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            let said = read(&stream);
            stream.write_all(&answer).unwrap();
            said
        });
        (endpoint, thread)
    }

    fn read(stream: &TcpStream) -> (String, String, Vec<u8>) {
        let mut reader = BufReader::new(stream);
        let mut first = String::new();
        reader.read_line(&mut first).unwrap();
        let (mut length, mut kind) = (0, String::new());
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            let Some((name, value)) = line.trim().split_once(": ") else { break };
            match name.to_ascii_lowercase().as_str() {
                "content-length" => length = value.parse().unwrap(),
                "content-type" => kind = value.to_owned(),
                _ => {}
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        (first.trim().to_owned(), kind, body)
    }

    fn http(status: &str, body: &[u8]) -> Vec<u8> {
        let head =
            format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
        [head.as_bytes(), body].concat()
    }

    /// As Prometheus would show a value: `name{labels} value`, by the rules of the collector's exporter.
    fn lines(metric: &Metric) -> Vec<String> {
        let (points, suffix) = match metric.data.as_ref().unwrap() {
            Data::Sum(sum) => {
                assert!(
                    sum.is_monotonic
                        && sum.aggregation_temporality == AggregationTemporality::Cumulative as i32
                );
                (&sum.data_points, "_total")
            }
            Data::Gauge(gauge) => (&gauge.data_points, ""),
            other => panic!("{other:?}"),
        };
        let unit = match metric.unit.as_str() {
            "By" => "_bytes",
            "s" => "_seconds",
            _ => "",
        };
        let name = metric.name.replace('.', "_");
        let line = |point: &NumberDataPoint| {
            assert_eq!(point.time_unix_nano, 5_000_000_000);
            assert_eq!(point.start_time_unix_nano, if suffix.is_empty() { 0 } else { 4_999_000_000 });
            let label = |found: &KeyValue| {
                let value = match found.value.as_ref().unwrap().value.as_ref().unwrap() {
                    Value::StringValue(text) => text.replace('"', "\\\""),
                    Value::IntValue(number) => number.to_string(),
                    other => panic!("{other:?}"),
                };
                format!("{}=\"{value}\"", found.key)
            };
            let labels: Vec<String> = point.attributes.iter().map(label).collect();
            let value = match point.value.unwrap() {
                number_data_point::Value::AsInt(value) => value.to_string(),
                number_data_point::Value::AsDouble(value) => value.to_string(),
            };
            format!("{name}{unit}{suffix}{{{}}} {value}", labels.join(","))
        };
        points.iter().map(line).collect()
    }

    #[test]
    fn what_arrives_is_what_prometheus_is_told() {
        let (endpoint, thread) = collector(http("200 OK", b""));
        let count = endpoint.push(&processes()).unwrap();
        let (first, kind, body) = thread.join().unwrap();
        assert_eq!((first.as_str(), kind.as_str()), ("POST /v1/metrics HTTP/1.1", "application/x-protobuf"));
        let request = ExportMetricsServiceRequest::decode(&body[..]).unwrap();
        let [of_process] = &request.resource_metrics[..] else { panic!("{request:?}") };
        let attributes = &of_process.resource.as_ref().unwrap().attributes;
        assert_eq!(attributes[0], attribute("service.name", Value::StringValue("train".into())));
        let [scope] = &of_process.scope_metrics[..] else { panic!("{of_process:?}") };
        let mut arrived: Vec<String> = scope.metrics.iter().flat_map(lines).collect();
        let text = super::super::prometheus::text(&processes()).unwrap();
        let mut expected: Vec<String> =
            text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect();
        arrived.sort_unstable();
        expected.sort_unstable();
        assert_eq!(arrived, expected);
        assert!(count == expected.len() && count > 10, "{count}");
        assert!(scope.metrics.iter().all(|metric| !metric.description.is_empty()));
    }

    #[test]
    fn a_collector_that_does_not_take_them_is_named() {
        let (endpoint, thread) = collector(http("404 Not Found", b"page not found"));
        let error = endpoint.push(&processes()).unwrap_err().to_string();
        assert!(
            error.contains(&endpoint.0) && error.contains("404") && error.ends_with("page not found"),
            "{error}"
        );
        thread.join().unwrap();
        let partial =
            ExportMetricsPartialSuccess { rejected_data_points: 3, error_message: "too old".into() };
        let answer = ExportMetricsServiceResponse { partial_success: Some(partial) }.encode_to_vec();
        let (endpoint, thread) = collector(http("200 OK", &answer));
        let error = endpoint.push(&processes()).unwrap_err().to_string();
        assert_eq!(error, format!("{endpoint} has rejected 3 values: too old"));
        thread.join().unwrap();
        let (endpoint, thread) = collector(b"what?\r\n\r\n".to_vec());
        let error = endpoint.push(&processes()).unwrap_err();
        assert!(matches!(error, PushError::Unreachable { .. }), "{error}");
        thread.join().unwrap();
    }

    #[test]
    fn nobody_and_one_that_is_silent_are_named_in_time() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint: Endpoint = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let since = Instant::now();
        // It accepts, and that is all.
        let error = endpoint.push(&processes()).unwrap_err().to_string();
        assert!(error.contains(&endpoint.0) && error.contains("timeout"), "{error}");
        assert!(since.elapsed() >= PATIENCE && since.elapsed() < PATIENCE * 3, "{:?}", since.elapsed());
        drop(listener);
        let error = endpoint.push(&processes()).unwrap_err().to_string();
        assert!(error.contains(&endpoint.0) && error.contains("refused"), "{error}");
    }

    #[test]
    fn an_endpoint_without_a_path_has_the_one_for_metrics() {
        let parse = |text: &str| text.parse::<Endpoint>().map(|endpoint| endpoint.0);
        assert_eq!(parse("http://h:4318").unwrap(), "http://h:4318/v1/metrics");
        assert_eq!(parse("http://h/").unwrap(), "http://h/v1/metrics");
        assert_eq!(parse("http://h/otlp/v1/metrics").unwrap(), "http://h/otlp/v1/metrics");
        assert_eq!(parse("http://[::1]/").unwrap(), "http://[::1]/v1/metrics");
        assert!(parse("https://h:4318").unwrap_err().contains("TLS"));
        for text in [
            "",
            "h:4318",
            "http://",
            "http:///x",
            "grpc://h",
            "http://a b",
            "http://h:99999",
            "http://h:0",
            "http://h:",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
