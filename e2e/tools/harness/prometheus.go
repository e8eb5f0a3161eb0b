package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"

	"github.com/refvol/refvol/e2e/tools/gobuild"
)

// Prometheus asks what the plugin served in the language of Prometheus. Its methods are safe for concurrent use.
type Prometheus struct {
	promtool, query string
}

// BuildPrometheus builds the programs behind it into dir. The first call on a machine takes minutes.
func BuildPrometheus(ctx context.Context, dir string, progress io.Writer) (*Prometheus, error) {
	o := prometheusBuild("github.com/prometheus/prometheus/cmd/promtool", progress)
	promtool, err := build(ctx, o, "prometheus", "promtool", dir)
	if err != nil {
		return nil, err
	}
	o.Package = "./query"
	query, err := build(ctx, o, "prometheus", "query", dir)
	return &Prometheus{promtool: promtool, query: query}, err
}

// BuildPrometheusServer builds Prometheus itself, without its pages, and returns the path of a copy in dir.
func BuildPrometheusServer(ctx context.Context, dir string, progress io.Writer) (string, error) {
	return build(ctx, prometheusBuild("github.com/prometheus/prometheus/cmd/prometheus", progress), "prometheus", "prometheus", dir)
}

func prometheusBuild(program string, progress io.Writer) gobuild.Options {
	// Without the tag it has the clients of all clouds.
	return gobuild.Options{Dir: "e2e/tools/prometheus", Package: program, Tags: "remove_all_sd", LDFlags: "-s -w", Progress: progress}
}

// Promtool runs promtool and returns what it printed, also with an error.
func (p *Prometheus) Promtool(ctx context.Context, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, p.promtool, args...).CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("promtool %q: %w: %s", args, err, out)
	}
	return string(out), nil
}

// Scrape is what a target with labels served, at a moment in seconds since any other.
type Scrape struct {
	Seconds float64           `json:"seconds"`
	Labels  map[string]string `json:"labels"`
	Text    string            `json:"text"`
}

// Sample is a series that a query has found, and its value.
type Sample struct {
	Labels map[string]string
	Value  float64
}

// Query returns what each query finds in scrapes at a moment.
func (p *Prometheus) Query(ctx context.Context, scrapes []Scrape, seconds float64, queries ...string) ([][]Sample, error) {
	request, err := json.Marshal(map[string]any{"scrapes": scrapes, "queries": queries, "seconds": seconds})
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, p.query)
	cmd.Stdin, cmd.Stderr = bytes.NewReader(request), os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("query: %w", err)
	}
	var answers [][]struct {
		Metric map[string]string
		Value  [2]any // the time, and the number as a text
	}
	if err := json.Unmarshal(out, &answers); err != nil {
		return nil, fmt.Errorf("query: %w in %s", err, out)
	}
	found := make([][]Sample, len(answers))
	for i, answer := range answers {
		for _, s := range answer {
			value, err := strconv.ParseFloat(fmt.Sprint(s.Value[1]), 64)
			if err != nil {
				return nil, fmt.Errorf("query %s: %w", queries[i], err)
			}
			found[i] = append(found[i], Sample{Labels: s.Metric, Value: value})
		}
	}
	return found, nil
}

// PrometheusKinds defines the kinds of the Prometheus operator, without their fields.
const PrometheusKinds = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: podmonitors.monitoring.coreos.com}
spec: {group: monitoring.coreos.com, scope: Namespaced, names: {kind: PodMonitor, plural: podmonitors}, versions: [` + anyFields + `]}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: prometheusrules.monitoring.coreos.com}
spec: {group: monitoring.coreos.com, scope: Namespaced, names: {kind: PrometheusRule, plural: prometheusrules}, versions: [` + anyFields + `]}
`

const anyFields = `{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}`
