package harness

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/refvol/refvol/e2e/tools/gobuild"
)

// Prometheus asks what the plugin served in the language of Prometheus. Its methods are safe for concurrent use.
type Prometheus struct{ promtool string }

// BuildPrometheus builds the program behind it into dir. The first call on a machine takes minutes.
func BuildPrometheus(ctx context.Context, dir string, progress io.Writer) (*Prometheus, error) {
	promtool, err := build(ctx, prometheusBuild("github.com/prometheus/prometheus/cmd/promtool", progress), "prometheus", "promtool", dir)
	return &Prometheus{promtool}, err
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

// Scrape is what a target with labels served.
type Scrape struct {
	Labels map[string]string
	Text   string
}

// sample is a line of a scrape: a metric, its labels and its value.
var sample = regexp.MustCompile(`^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)$`)

// HasResults returns an error unless each expression has a result, or none, as want says, at the last of scrapes, which lie half a minute
// apart. It has promtool run a unit test, whose file it writes into dir.
func (p *Prometheus) HasResults(ctx context.Context, dir string, scrapes []Scrape, want map[string]bool) error {
	if len(want) == 0 {
		return errors.New("no expression is asked for")
	}
	type object = map[string]any
	values := map[string][]string{}
	for i, s := range scrapes {
		for text := range strings.SplitSeq(s.Text+"up 1", "\n") {
			if text == "" || strings.HasPrefix(text, "#") {
				continue
			}
			line := sample.FindStringSubmatch(text)
			if line == nil {
				return fmt.Errorf("no sample: %s", text)
			}
			value, err := strconv.ParseFloat(line[3], 64)
			if err != nil {
				return fmt.Errorf("%s: %w", text, err)
			}
			labels := line[2]
			for _, name := range slices.Sorted(maps.Keys(s.Labels)) {
				labels = strings.TrimPrefix(fmt.Sprintf("%s,%s=%q", labels, name, s.Labels[name]), ",")
			}
			series := line[1] + "{" + labels + "}"
			if values[series] == nil {
				values[series] = slices.Repeat([]string{"_"}, len(scrapes))
			}
			values[series][i] = strconv.FormatFloat(value, 'f', -1, 64)
		}
	}
	var input, tests []object
	for series, all := range values {
		input = append(input, object{"series": series, "values": strings.Join(all, " ")})
	}
	for expr, has := range want {
		count := 0
		if has {
			count = 1
		}
		tests = append(tests, object{
			"expr":      "(count(" + expr + "\n) or vector(0)) > bool 0", // the expression may end with a comment
			"eval_time": fmt.Sprint(30*(len(scrapes)-1), "s"), "exp_samples": []object{{"labels": "{}", "value": count}},
		})
	}
	text, err := json.Marshal(object{"evaluation_interval": "30s", "tests": []object{{"interval": "30s", "input_series": input, "promql_expr_test": tests}}})
	if err != nil {
		return err
	}
	file := filepath.Join(dir, "test.yaml") // of which JSON is a part
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return err
	}
	_, err = p.Promtool(ctx, "test", "rules", file)
	return err
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
