package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/refvol/refvol/e2e/tools/controlplane"
	"github.com/refvol/refvol/e2e/tools/harness"
)

// costAtOnce is how many volumes are published at a time, as pods start.
const costAtOnce = 50

// runCost is B10: many volumes over few objects, and what the API server is asked for from
// the plugin's start until all of them are shown; and then what the kubelet asks for because of the
// same pods.
func runCost(ctx context.Context, l *lab) error {
	count, objects := scaled(l, 50, 1000), scaled(l, 5, 100)
	if err := l.create(ctx, objects, state); err != nil {
		return err
	}
	for _, i := range identities() {
		if err := l.cost(ctx, i, count, objects); err != nil {
			return fmt.Errorf("--identity=%s: %w", i, err)
		}
	}
	return nil
}

// cost is B10 with an identity.
func (l *lab) cost(ctx context.Context, i identity, count, objects int) error {
	begin, err := l.traffic(ctx)
	if err != nil {
		return err
	}
	n, err := l.newNodeAs(ctx, i)
	if err != nil {
		return err
	}
	started, err := l.traffic(ctx)
	if err != nil {
		return err
	}
	all := i.volumes(count, objects)
	if err := n.storePods(ctx, all); err != nil {
		return err
	}
	known, err := l.traffic(ctx)
	if err != nil {
		return err
	}
	if err := n.publishAll(ctx, all, costAtOnce); err != nil {
		return err
	}
	if err := n.showNumbered(all, objects); err != nil {
		return err
	}
	published, err := l.traffic(ctx)
	if err != nil {
		return err
	}
	if err := l.reportCost(ctx, n, i, objects, count, started.since(begin), published.since(known)); err != nil {
		return err
	}
	if err := l.kubeletCost(ctx, i, objects, published); err != nil {
		return err
	}
	if err := n.Close(); err != nil {
		return err
	}
	return eventually(ctx, func() error { return l.watched(ctx, 0) })
}

// reportCost reports what a start and then the volumes of so many objects took, and fails
// if that is not one watch for each object, and for each volume what the identity reads of pods.
func (l *lab) reportCost(ctx context.Context, n *node, i identity, objects, volumes int, start, later traffic) error {
	open, err := l.OpenWatches(ctx, "configmaps")
	if err != nil {
		return err
	}
	connections, err := connections(n.PID())
	if err != nil {
		return err
	}
	pods := later.others[controlplane.Request{Verb: "GET", Resource: "pods"}]
	value := func(name, unit string, v float64) { l.report.Value(i.figure("cost", name), unit, v) }
	value("watches", "watches", float64(open-l.ownWatches))
	value("requests_per_object", "requests", float64(later.watches+later.asked()-pods)/float64(objects))
	value("pod_requests_per_volume", "requests", float64(pods)/float64(volumes))
	value("startup_requests", "requests", float64(start.watches+start.asked()))
	value("connections", "connections", float64(connections))
	if err := later.want(objects, volumes*i.podReads(), volumes*i.podReads()); err != nil {
		return err
	}
	return l.watched(ctx, objects)
}

// kubeletCost has the kubelet's own manager hear of the pods, reports what that asks for of
// objects, and fails if that is not one watch for each object that the pods' specs name.
func (l *lab) kubeletCost(ctx context.Context, i identity, objects int, before traffic) error {
	named := 0
	if i == asNode {
		named = objects
	}
	kubelet, err := l.newKubelet("kubelet-" + string(i))
	if err != nil {
		return err
	}
	listed := controlplane.Request{Verb: "LIST", Resource: "pods"}
	err = eventually(ctx, func() error {
		now, err := l.traffic(ctx)
		if seen := now.since(before); err == nil && seen.others[listed] == 0 {
			err = fmt.Errorf("the kubelet has not asked for its pods: the API server had %v", seen)
		}
		return errors.Join(err, l.watched(ctx, objects+named))
	})
	if err != nil {
		return err
	}
	now, err := l.traffic(ctx)
	if err != nil {
		return err
	}
	seen := now.since(before)
	l.report.Value(i.figure("cost", "kubelet_watches"), "watches", float64(seen.watches))
	if err := seen.want(named, 1, 1); err != nil {
		return err
	}
	if named > 0 && !l.bench.short {
		if err := l.awaitKubelet(ctx, i, objects); err != nil {
			return err
		}
	}
	return kubelet.close()
}

// awaitKubelet waits until the kubelet watches nothing any more that nobody has used, and reports
// how long that took: it looks once a minute.
func (l *lab) awaitKubelet(ctx context.Context, i identity, objects int) error {
	begin := time.Now()
	err := harness.Poll(ctx, 3*time.Minute, 100*time.Millisecond, func() error { return l.watched(ctx, objects) })
	l.report.Value(i.figure("cost", "kubelet_s"), "s", time.Since(begin).Seconds())
	return err
}

// showNumbered returns an error unless all volumes are mounted, and each shows its object;
// volume i has that of number i modulo objects.
func (n *node) showNumbered(all []*harness.Volume, objects int) error {
	return errors.Join(n.mounted(len(all)), n.show(all, func(i int) string { return state(i % objects) }))
}
