package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/suites/bench/measure"
	"github.com/refvol/refvol/e2e/tools/controlplane"
	"github.com/refvol/refvol/e2e/tools/harness"
)

const patience = 10 * time.Minute

// load is how many clients of how many objects there are, and what they go through. Volume i of a node shows object
// i.
type load struct {
	// figure is what the figures' names begin with.
	figure         string
	nodes, objects int
	// opening is how many watches a reference opens at once: 0, or as many as the plugin.
	opening int
	// beside is how many more objects each node shows, which don't change. If there are any, there is one volume for
	// each of them, and all volumes show the first object too.
	beside int
	// every is of how many objects one changes in each round.
	every int
	// steady has updates follow, while nothing is wrong.
	steady bool
	all    []disruption
}

// disruption is something after which the clients of an API server have to recover, and how often.
type disruption struct {
	name   string
	rounds int
}

// prefix is what the names of a disruption's figures begin with, after the scenario's.
func (l load) prefix(disruption string) string {
	return fmt.Sprintf("%dx%d_%s_", l.nodes, cmp.Or(l.beside, l.objects), disruption)
}

// runRestart is B8.
func runRestart(ctx context.Context, l *lab) error {
	reference, ours := l.recoverUnder(ctx, load{
		figure: "restart", nodes: 1, objects: scaled(l, 50, 1000), every: 10, all: []disruption{{"start", 3}},
	})
	return errors.Join(
		l.report.Samples("restart.current_s", "s", ours.took["start_s"]),
		l.report.Samples("restart.reference_s", "s", reference.took["start_s"]))
}

// runRecovery is B12. The references have the plugin's bound on the watches that begin at once. Either side has an API server of its own.
func runRecovery(ctx context.Context, l *lab) error {
	of := func(nodes, objects int, more ...disruption) load {
		return load{
			figure: "recovery", opening: 16, nodes: nodes, objects: objects, every: 1,
			steady: more != nil, all: append([]disruption{{"start", 3}}, more...),
		}
	}
	faults := []disruption{{"killed", 3}, {"stalled_8s", 1}, {"stalled_30s", 1}, {"stalled_60s", 1}}
	loads := scaled(l, []load{of(2, 20, faults...)}, []load{of(1, 1000), of(5, 600), of(10, 1000, faults...)})
	for _, load := range loads {
		l.reportRecovery(ctx, load)
	}
	return nil
}

// runRehearsal is B15.
func runRehearsal(ctx context.Context, l *lab) error {
	l.reportRecovery(ctx, load{
		figure: "rehearsal", nodes: scaled(l, 3, 300), objects: 1, beside: scaled(l, 4, 20), every: 1,
		all: []disruption{{"updated", 5}, {"killed", 3}},
	})
	return nil
}

// prepare does what the figures of a disruption leave out: clients that are to start end, and objects change.
func (s *side) prepare(ctx context.Context, disruption string) {
	if disruption != "start" {
		return
	}
	fatal(s.fleet.stop())
	// The API server may take a while to notice.
	fatal(harness.Poll(ctx, patience, 100*time.Millisecond, func() error { return s.watched(ctx, 0) }))
	s.write(ctx)
}

// cause brings a disruption about, and returns when the clients could begin to recover. All objects are in the state
// that is wanted when it returns.
func (s *side) cause(ctx context.Context, disruption string) (began time.Time) {
	switch disruption {
	case "start":
		began = time.Now()
		s.fleet.start(ctx)
		return began
	case "updated":
		began = time.Now()
		s.write(ctx)
		return began
	case "killed":
		return s.killServer(ctx)
	}
	// The API server stops for a while: its connections stay, and nothing answers on them.
	lasts := must(time.ParseDuration(strings.TrimPrefix(disruption, "stalled_")))
	fatal(os.NewSyscallError("kill", unix.Kill(s.APIServerPID(), unix.SIGSTOP)))
	select {
	case <-ctx.Done():
	case <-time.After(scaled(s.lab, lasts/100, lasts)):
	}
	began = time.Now()
	fatal(os.NewSyscallError("kill", unix.Kill(s.APIServerPID(), unix.SIGCONT)))
	s.write(ctx)
	return began
}

// killServer kills the API server and starts it. Objects change after that, or the only one while it is away.
func (s *side) killServer(ctx context.Context) (began time.Time) {
	object := must(s.configMaps().Get(ctx, objectName(0), metav1.GetOptions{}))
	fatal(s.StopAPIServer())
	only := len(s.want) == 1
	if only {
		s.want[0]++
		object.Data[valueKey] = state(s.want[0])
		fatal(s.PutConfigMap(ctx, object))
	}
	began = time.Now()
	bounded, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	fatal(s.StartAPIServer(bounded))
	if !only {
		s.write(ctx)
	}
	return began
}

type side struct {
	*lab
	name  string
	load  load
	fleet fleet
	count *handshakes
	// want has the state that each object is in; rounds is how often they were written.
	want   []int
	rounds int
	// took has, by the names of figures, what each round of the disruptions took.
	took map[string][]float64
	lost int // copies that never showed one of the steady updates
}

// recoverUnder has references and plugins go through a load's disruptions.
func (l *lab) recoverUnder(ctx context.Context, load load) (reference, ours *side) {
	var failed error
	run := func(name string, newFleet makeFleet) *side {
		s := &side{name: load.figure + "-" + load.prefix(name), load: load, want: make([]int, load.objects), took: map[string][]float64{}}
		if err := s.run(ctx, l.bench, newFleet); err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", s.name, err))
		}
		return s
	}
	reference, ours = run("reference", newReferences), run("refvol", newPlugins)
	fatal(failed)
	return reference, ours
}

func (s *side) run(ctx context.Context, b *bench, newFleet makeFleet) (err error) {
	if s.lab, err = b.newLab(ctx, strings.Trim(s.name, "_"), false); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	defer catch(&err)
	fatal(s.create(ctx, s.load.objects+s.load.beside, always(state(0))))
	s.count = s.newHandshakes()
	s.fleet = newFleet(ctx, s.lab, s.load)
	defer func() { err = errors.Join(err, s.fleet.close()) }()
	must(s.await(ctx, patience))
	for _, d := range s.load.all {
		for range scaled(s.lab, 1, d.rounds) {
			if err := s.disrupt(ctx, d.name); err != nil {
				return fmt.Errorf("%s: %w", d.name, err)
			}
		}
	}
	if !s.load.steady {
		return nil
	}
	// Last, so that it shows whether anything was left behind.
	fatal(s.updateSteadily(ctx, s.load.objects, 20*time.Millisecond, func(i int) (object, value string) {
		s.want[i]++
		return objectName(i), state(s.want[i])
	}))
	_, late := s.await(ctx, soon)
	_, s.lost, err = s.fleet.arrivals(ctx, s.want)
	return errors.Join(late, err)
}

func (s *side) disrupt(ctx context.Context, disruption string) (err error) {
	defer catch(&err)
	s.prepare(ctx, disruption)
	server := s.APIServerPID()
	before := s.bill(ctx, disruption != "start")
	began := s.cause(ctx, disruption)
	written := time.Now() // no copy counts as current before that
	at := must(s.await(ctx, patience))
	took := s.bill(ctx, true)
	for name := range took {
		// Another process counts from 0.
		isOther := server != s.APIServerPID()
		if name == "clients_cpu" {
			isOther = disruption == "start"
		}
		if name == "handshakes" || !isOther {
			took[name] -= before[name]
		}
	}
	took["s"] = slices.MaxFunc(append(at, written), time.Time.Compare).Sub(began).Seconds()
	s.bench.logf("  %s%s: %v", s.name, disruption, took)
	for name, figure := range took {
		s.took[disruption+"_"+name] = append(s.took[disruption+"_"+name], figure)
	}
	return nil
}

// await waits until all copies are current, and each client watches each object once. It returns when the copies
// became current. It asks seldom, and not at once: the clients note the times by themselves, and the answers of so
// many processes take their time.
func (s *side) await(ctx context.Context, timeout time.Duration) (at []time.Time, err error) {
	pause := time.Duration(s.load.nodes) * 10 * time.Millisecond
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(pause):
	}
	err = harness.Poll(ctx, timeout, max(pause, 250*time.Millisecond), func() (err error) {
		var missing int
		if at, missing, err = s.fleet.arrivals(ctx, s.want); err == nil && missing > 0 {
			err = fmt.Errorf("%d copies are not current", missing)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return at, harness.Poll(ctx, timeout, time.Second, func() error {
		return s.watched(ctx, s.load.nodes*(s.load.objects+s.load.beside))
	})
}

// write puts the round's objects into their next state. It goes on until that is done, as the API server may have
// come back a moment ago.
func (s *side) write(ctx context.Context) {
	var objects []int
	for i := s.rounds % s.load.every; i < len(s.want); i += s.load.every {
		s.want[i]++
		objects = append(objects, i)
	}
	s.rounds++
	fatal(inParallel(len(objects), 8, func(k int) error {
		i := objects[k]
		return harness.Poll(ctx, patience, 100*time.Millisecond, func() error {
			return s.update(ctx, objectName(i), state(s.want[i]))
		})
	}))
}

// bill is what the API server was asked for since it started: TLS handshakes, watches and reads of ConfigMaps,
// requests that it answered with 429, and its seconds on a processor. clients_cpu are those of its clients, if these run.
func (s *side) bill(ctx context.Context, isRunning bool) map[string]float64 {
	asked, cpu := s.asked(ctx, s.APIServerPID())
	requests := 0
	for _, verb := range []string{"WATCH", "GET", "LIST"} {
		requests += asked[controlplane.Request{Verb: verb, Resource: "configmaps"}]
	}
	refused, begun := must(s.Refusals(ctx)), s.count.begun()
	all := map[string]float64{"handshakes": begun, "requests": float64(requests), "refused": float64(refused), "cpu": cpu}
	if isRunning {
		for _, pid := range s.fleet.pids() {
			p := must(stat(pid))
			all["clients_cpu"] += p.CPUTime()
		}
	}
	return all
}

// reportRecovery reports what the plugins took under a load, beside what the references did: medians of times, and of
// counts the largest.
func (l *lab) reportRecovery(ctx context.Context, load load) {
	reference, ours := l.recoverUnder(ctx, load)
	for _, d := range load.all {
		value := func(name, unit string, v float64) { l.report.Value(load.figure+"."+name, unit, v) }
		prefix := load.prefix(d.name)
		median := func(s *side, name string) float64 { return measure.Median(s.took[d.name+"_"+name]) }
		most := func(s *side, name string) float64 { return slices.Max(s.took[d.name+"_"+name]) }
		value(prefix+"ratio", "ratio", median(ours, "s")/median(reference, "s"))
		value(prefix+"refused_added", "requests", most(ours, "refused")-most(reference, "refused"))
		for name, s := range map[string]*side{prefix: ours, "reference_" + prefix: reference} {
			value(name+"s", "s", median(s, "s"))
			value(name+"cpu", "s", median(s, "cpu"))
			value(name+"volume_cpu_ms", "ms", 1000*median(s, "clients_cpu")/float64(load.nodes*cmp.Or(load.beside, load.objects)))
			value(name+"refused", "requests", most(s, "refused"))
			value(name+"requests", "requests", most(s, "requests"))
			value(name+"handshakes", "a node", most(s, "handshakes")/float64(load.nodes))
		}
	}
	if load.steady {
		l.report.Value(load.figure+"."+load.prefix("steady")+"lost", "updates", float64(ours.lost))
	}
}
