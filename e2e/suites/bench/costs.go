package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/refvol/refvol/e2e/suites/bench/measure"
	"github.com/refvol/refvol/e2e/suites/bench/steps"
)

// costs is what a plugin has used up since it started.
type costs struct{ cpu, allocated float64 }

// costs asks for it. The question itself allocates too.
func (s *subject) costs(ctx context.Context) costs {
	p := must(stat(s.pid))
	return costs{p.CPUTime(), s.number(ctx, "/debug/pprof/heap?debug=1", `(?m)^# TotalAlloc = (\d+)$`)}
}

// reportCosts reports what the plugin used up for each of so many updates, in figures whose names begin with prefix.
func (l *lab) reportCosts(ctx context.Context, of *subject, prefix string, updates int, do func() error) {
	first, before := of.costs(ctx), of.costs(ctx)
	fatal(do())
	after := of.costs(ctx)
	l.report.Value(prefix+"cpu_ms", "ms", 1000*(after.cpu-before.cpu)/float64(updates))
	question := before.allocated - first.allocated
	l.report.Value(prefix+"allocated_bytes", "bytes", (after.allocated-before.allocated-question)/float64(updates))
}

// reportSteps has the plugin write an execution trace while do makes so many updates, and reports what each took in each step.
func (l *lab) reportSteps(ctx context.Context, of *subject, updates int, lasts time.Duration, do func() error) {
	var text []byte
	var tracing errgroup.Group
	tracing.Go(func() (err error) {
		text, err = of.get(ctx, fmt.Sprintf("/debug/pprof/trace?seconds=%.0f", lasts.Seconds()))
		return err
	})
	fatal(errors.Join(do(), tracing.Wait()))
	all := must(steps.Read(bytes.NewReader(text)))
	for _, name := range []string{"receive", "decode", "reconcile", "replace"} {
		if all[name].Own == 0 {
			fatal(fmt.Errorf("the trace of %d updates has no step %q", updates, name))
		}
	}
	each := func(name string, d time.Duration) {
		l.report.Value("update."+name, "us", float64(d.Microseconds())/float64(updates))
	}
	for _, name := range steps.Names() {
		each("step_"+name+"_own_us", all[name].Own)
		each("step_"+name+"_calls_us", all[name].Calls)
	}
}

// stepsTable tells in Markdown where the time of an update goes, by the figures of B1.
func stepsTable(f measure.File) string {
	texts := map[string]string{
		"wake":       "goroutines could run, and a processor was not free, or slept",
		"receive":    "receive the event: HTTP/2 and TLS",
		"decode":     "decode the object, and store it",
		"reconcile":  "read the answers, decide, render",
		"prove":      "prove that the mount is the volume's",
		"list":       "list the volume",
		"compare":    "compare the files",
		"replace":    "make the generation, and switch `..data`",
		"links":      "check the links of the keys",
		"write_rest": "the rest of the write",
		"receipts":   "watch the new files for opens",
		"measure":    "ask how much memory the volume holds",
		"prune":      "remove the generation of a second ago",
	}
	var b strings.Builder
	fmt.Fprint(&b, "| step of an update | own time, us | system calls, us |\n|---|---|---|\n")
	for _, name := range steps.Names() {
		fmt.Fprintf(&b, "| %s | %.0f | %.0f |\n", texts[name], f.Value("update.step_"+name+"_own_us"), f.Value("update.step_"+name+"_calls_us"))
	}
	return b.String()
}
