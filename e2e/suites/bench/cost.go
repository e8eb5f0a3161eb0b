package main

import (
	"context"
	"fmt"
	"os"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
)

const (
	// costSize is about what an object takes where only the number of them counts, in bytes.
	costSize = 1 << 10
	// costAtOnce is how many volumes are published at a time, as pods start.
	costAtOnce = 50
)

// runCost is B10: many volumes over few objects, and what the API server is asked for from
// the plugin's start until all of them are shown.
func runCost(ctx context.Context, l *lab) error {
	count, objects := scaled(l, 50, 1000), scaled(l, 5, 100)
	if err := l.createNumbered(ctx, objects); err != nil {
		return err
	}
	begin, err := l.traffic(ctx)
	if err != nil {
		return err
	}
	n, err := l.newNode(ctx, "node")
	if err != nil {
		return err
	}
	started, err := l.traffic(ctx)
	if err != nil {
		return err
	}
	all := volumes(count, objects)
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
	return l.reportCost(ctx, n, objects, started.since(begin), published.since(started))
}

// reportCost reports what a start and then the volumes of so many objects took, and fails
// if that is not one watch for each object.
func (l *lab) reportCost(ctx context.Context, n *node, objects int, start, later traffic) error {
	open, err := l.OpenWatches(ctx, "configmaps")
	if err != nil {
		return err
	}
	connections, err := connections(n.PID())
	if err != nil {
		return err
	}
	l.report.Value("cost.watches", "watches", float64(open-l.ownWatches))
	l.report.Value("cost.requests_per_object", "requests", float64(later.watches+later.asked())/float64(objects))
	l.report.Value("cost.startup_requests", "requests", float64(start.watches+start.asked()))
	l.report.Value("cost.connections", "connections", float64(connections))
	if err := later.want(objects, 0); err != nil {
		return err
	}
	return l.watched(ctx, objects)
}

// createNumbered creates count ConfigMaps, of which number i is in state i.
func (l *lab) createNumbered(ctx context.Context, count int) error {
	return inParallel(count, 8, func(i int) error {
		_, err := l.client.CoreV1().ConfigMaps(namespace).Create(ctx, numbered(i), metav1.CreateOptions{})
		return err
	})
}

func numbered(i int) *corev1.ConfigMap { return configMap(objectName(i), state(i), costSize) }

// showNumbered returns an error unless all volumes are mounted, and each shows its object;
// volume i has that of number i modulo objects.
func (n *node) showNumbered(all []*harness.Volume, objects int) error {
	if err := n.mounted(len(all)); err != nil {
		return err
	}
	for i, v := range all {
		if err := n.shows(v, i%objects); err != nil {
			return err
		}
	}
	return nil
}

// shows returns an error unless a volume shows the object of a number.
func (n *node) shows(v *harness.Volume, number int) error {
	content, err := os.ReadFile(n.valueFile(v))
	if err != nil {
		return err
	}
	if want := state(number); string(content) != want {
		return fmt.Errorf("volume %s shows %q, want %q", v.ID(), content, want)
	}
	return nil
}
