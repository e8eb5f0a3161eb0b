package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/refvol/refvol/e2e/suites/bench/measure"
	"github.com/refvol/refvol/e2e/tools/harness"
)

const (
	// The time between two updates of B1 and B3: each is over before the next.
	updateInterval, fanoutInterval = 50 * time.Millisecond, 200 * time.Millisecond
	// updateTurns is how often the identities take turns.
	updateTurns = 10
	// fanoutVolumes is how many pods a node has at most, each with a volume of the object.
	fanoutVolumes = 110
)

// runUpdate is B1. The plugins of the identities take turns, so that the machine is the same for both.
func runUpdate(ctx context.Context, l *lab) (err error) {
	updates := scaled(l, 20, 1000)
	fatal(l.create(ctx, len(identities())+1, always(before))) // one for reportBeside
	var nodes []*node
	var all []*updating
	defer func() {
		for _, u := range all {
			err = errors.Join(err, u.close())
		}
	}()
	for i, identity := range identities() {
		n := l.newNode(ctx, identity, "node-"+string(identity), "--profiling-address=127.0.0.1:0")
		nodes = append(nodes, n)
		v := identity.volume(objectName(i))
		n.storePods(ctx, v)
		fatal(n.Publish(ctx, v))
		all = append(all, l.newUpdating(ctx, objectName(i), n.valueFiles([]*harness.Volume{v})))
	}
	for range updateTurns {
		for _, u := range all {
			fatal(u.send(ctx, updates/updateTurns, updateInterval))
		}
	}
	for i, identity := range identities() {
		u := all[i]
		if err := u.await(ctx, identity.figure("update", "lost")); err != nil {
			return fmt.Errorf("--identity=%s: %w", identity, err)
		}
		added := measure.Milliseconds(u.shown[0].after(u.told.moments()))
		fatal(l.report.Samples(identity.figure("update", "added_ms"), "ms", added))
	}
	l.reportCost(ctx, nodes[0], all[0])
	fatal(l.reportBeside(ctx, nodes[0]))
	floor := must(l.floor(ctx, "update.floor_ms", 1, updates))
	l.report.Value("update.floor_ratio", "ratio", l.report.P50("update.added_ms")/floor)
	l.report.Value("update.node_ratio", "ratio", l.report.P50("update.node_added_ms")/l.report.P50("update.added_ms"))
	return nil
}

// reportCost reports what an update costs the plugin, and where its time goes, beside more updates. These are not timed.
func (l *lab) reportCost(ctx context.Context, n *node, u *updating) {
	plugin, updates := n.subject(), scaled(l, 20, 200)
	more := func() error { return u.sendAll(ctx, updates) }
	l.reportCosts(ctx, plugin, "update.", updates, more)
	l.reportSteps(ctx, plugin, updates, time.Duration(updates)*updateInterval+2*time.Second, more)
}

// reportBeside reports what an update costs the plugin if the volume also shows a value of 900 KiB, which does not change.
func (l *lab) reportBeside(ctx context.Context, n *node) (err error) {
	object, large := objectName(len(identities())), configMap(objectPrefix+"large", before)
	large.Data[paddingKey] = strings.Repeat("x", 900<<10)
	must(l.configMaps().Create(ctx, large, metav1.CreateOptions{}))
	v := asPlugin.volume(object)
	v.Attributes = map[string]string{"sources": fmt.Sprintf(
		"[{configMap: {name: %s}}, {configMap: {name: %s, items: [{key: %s, path: large}]}}]", object, large.Name, paddingKey)}
	fatal(n.Publish(ctx, v))
	u := l.newUpdating(ctx, object, n.valueFiles([]*harness.Volume{v}))
	defer func() { err = errors.Join(err, u.close()) }()
	updates := scaled(l, 20, 200)
	l.reportCosts(ctx, n.subject(), "update.beside_", updates, func() error { return u.sendAll(ctx, updates) })
	return nil
}

// runFanout is B3.
func runFanout(ctx context.Context, l *lab) (err error) {
	fatal(l.create(ctx, 1, always(before)))
	n := l.newNode(ctx, asPlugin, "node")
	all := asPlugin.volumes(fanoutVolumes, 1)
	fatal(n.publishAll(ctx, all, 16))
	// One watch serves all of them, and goes on to; the bare one is not there yet, or no more.
	counts := func() error { return errors.Join(l.watched(ctx, 1), n.mounted(len(all))) }
	fatal(eventually(ctx, counts))
	u := l.newUpdating(ctx, objectName(0), n.valueFiles(all))
	err = u.send(ctx, scaled(l, 5, 200), fanoutInterval)
	if err == nil {
		err = u.await(ctx, "fanout.lost")
	}
	fatal(errors.Join(err, u.close()))
	last := make([]time.Duration, u.sent)
	for _, t := range u.shown {
		for i, took := range t.after(u.told.moments()) {
			last[i] = max(last[i], took)
		}
	}
	fatal(errors.Join(n.show(all, always(state(u.sent-1))), eventually(ctx, counts),
		l.report.Samples("fanout.last_ms", "ms", measure.Milliseconds(last))))
	floor, err := l.floor(ctx, "fanout.floor_ms", len(all), u.sent)
	l.report.Value("fanout.floor_ratio", "ratio", l.report.P50("fanout.last_ms")/floor)
	return err
}

// updating is one object under updates, the volumes that show it, and a bare watch of it: nothing that shows an
// object can be faster. It is for one goroutine; its own ends with close.
type updating struct {
	*lab
	*volumesReader
	object string
	// told is when the bare watch told of each update; sent is how many were sent.
	told  *timeline
	sent  int
	floor watch.Interface
	ended chan struct{}
}

func (l *lab) newUpdating(ctx context.Context, object string, files []string) *updating {
	u := &updating{lab: l, object: object, told: &timeline{}, ended: make(chan struct{}), volumesReader: must(readVolumes(files))}
	var err error
	u.floor, err = l.configMaps().Watch(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, object).String(),
	})
	if err != nil {
		fatal(errors.Join(fmt.Errorf("watch %s: %w", object, err), u.Close()))
	}
	go func() {
		defer close(u.ended)
		for event := range u.floor.ResultChan() {
			at := time.Now()
			if cm, ok := event.Object.(*corev1.ConfigMap); ok {
				u.told.see(cm.Data[valueKey], at)
			}
		}
	}()
	return u
}

func (u *updating) close() error {
	u.floor.Stop()
	<-u.ended
	return u.Close()
}

func (u *updating) send(ctx context.Context, updates int, interval time.Duration) error {
	first := u.sent
	u.sent += updates
	return u.updateSteadily(ctx, updates, interval, func(i int) (object, value string) { return u.object, state(first + i) })
}

func (u *updating) sendAll(ctx context.Context, updates int) error {
	if err := u.send(ctx, updates, updateInterval); err != nil {
		return err
	}
	return u.settle(ctx)
}

func (u *updating) settle(ctx context.Context) error {
	return eventually(ctx, func() error {
		for i, t := range slices.Concat([]*timeline{u.told}, u.shown) {
			if seen := len(t.moments()); seen < u.sent {
				return fmt.Errorf("update %d of %d is the last that the watch (0) or volume %d showed", seen, u.sent, i)
			}
		}
		return nil
	})
}

// await waits until the last update was seen by all, reports in a figure how many were lost, and fails if one was.
func (u *updating) await(ctx context.Context, figure string) error {
	err := u.settle(ctx)
	lost := 0
	for _, t := range u.shown {
		lost += u.sent - len(t.moments())
	}
	u.report.Value(figure, "updates", float64(lost))
	return err
}
