package main

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/refvol/refvol/e2e/suites/bench/measure"
	"github.com/refvol/refvol/e2e/suites/bench/steps"
)

// costs is what a plugin has used up since it started.
type costs struct{ cpu, allocated, objects float64 }

// costs asks for it. The question itself allocates too.
func (s *subject) costs(ctx context.Context) (c costs, err error) {
	p := must(stat(s.pid))
	c.cpu = p.CPUTime()
	if c.allocated, err = s.number(ctx, "/debug/pprof/heap?debug=1", `(?m)^# TotalAlloc = (\d+)$`); err != nil {
		return c, err
	}
	c.objects, err = s.number(ctx, "/debug/pprof/heap?debug=1", `(?m)^# Mallocs = (\d+)$`)
	return c, err
}

// reportCosts reports what the plugin used up for each of so many updates, in figures whose names begin with prefix.
func (l *lab) reportCosts(ctx context.Context, of *subject, prefix string, updates int, do func() error) error {
	first := must(of.costs(ctx))
	before := must(of.costs(ctx))
	fatal(do())
	after := must(of.costs(ctx))
	each := func(name, unit string, now, then, question float64) {
		l.report.Value(prefix+name, unit, (now-then-question)/float64(updates))
	}
	each("cpu_ms", "ms", 1000*after.cpu, 1000*before.cpu, 0)
	each("allocated_bytes", "bytes", after.allocated, before.allocated, before.allocated-first.allocated)
	each("allocations", "objects", after.objects, before.objects, before.objects-first.objects)
	return nil
}

// reportSteps has the plugin write an execution trace while do makes so many updates, and reports what each took in each step.
func (l *lab) reportSteps(ctx context.Context, of *subject, updates int, lasts time.Duration, do func() error) error {
	done := make(chan error, 1)
	var text []byte
	go func() {
		var err error
		text, err = of.get(ctx, fmt.Sprintf("/debug/pprof/trace?seconds=%.0f", lasts.Seconds()))
		done <- err
	}()
	err := do()
	if traceErr := <-done; err == nil {
		err = traceErr
	}
	fatal(err)
	all, calls, err := steps.Read(bytes.NewReader(text))
	fatal(err)
	for _, name := range []string{"receive", "decode", "reconcile", "replace"} {
		if all[name].Own == 0 {
			return fmt.Errorf("the trace of %d updates has no step %q", updates, name)
		}
	}
	each := func(name string, d time.Duration) {
		l.report.Value("update."+name, "us", float64(d.Microseconds())/float64(updates))
	}
	for _, name := range steps.Names() {
		each("step_"+name+"_own_us", all[name].Own)
		each("step_"+name+"_calls_us", all[name].Calls)
	}
	for name, t := range calls {
		each("call_"+name+"_us", t.Calls)
		l.report.Value("update.call_"+name+"_count", "calls", float64(t.Count)/float64(updates))
	}
	return nil
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
