package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/suites/bench/measure"
	"github.com/refvol/refvol/e2e/tools/harness"
)

// volumesOfPod is how many volumes a pod of the burst has.
const volumesOfPod = 3

// publishing is B5 under way. Its methods are called by one goroutine.
type publishing struct {
	*lab
	node  *node
	floor *mountFloor
	// before is what the API server was asked for before the first publish.
	before traffic
	// warm volumes show object 0; cold and burst have an object for each volume, which
	// follow that one.
	warm, cold, burst []*harness.Volume
	// figures are the samples by the name of their result.
	figures map[string][]time.Duration
}

// runPublish is B5: how long the kubelet waits for the answer to NodePublishVolume, when
// the object is watched already, when nobody has asked for it yet, and when all pods of a
// node start at once.
func runPublish(ctx context.Context, l *lab) error {
	p, err := l.newPublishing(ctx, scaled(l, 20, 500), scaled(l, 10, 110))
	if err != nil {
		return err
	}
	// Somebody watches object 0 from here on.
	first := volume(objectName(0))
	if err := p.node.Publish(ctx, first); err != nil {
		return err
	}
	for _, step := range []func(context.Context) error{p.publishWarm, p.publishCold, p.publishBurst, p.check} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	if err := p.unpublish(ctx, first); err != nil {
		return err
	}
	return p.reportAll()
}

// newPublishing makes the objects, the volumes and what a kubelet makes for them.
func (l *lab) newPublishing(ctx context.Context, count, pods int) (*publishing, error) {
	p := &publishing{lab: l, warm: volumes(count, 1), figures: map[string][]time.Duration{}}
	for i := range count {
		p.cold = append(p.cold, volume(objectName(1+i)))
	}
	for i := range pods * volumesOfPod {
		v := volume(objectName(1 + count + i))
		if i%volumesOfPod > 0 {
			v.UID = p.burst[i-1].UID
		}
		v.Pod, v.Name = fmt.Sprint("pod-", i/volumesOfPod), fmt.Sprint("volume-", i%volumesOfPod)
		p.burst = append(p.burst, v)
	}
	err := l.createNumbered(ctx, 1+len(p.cold)+len(p.burst))
	if err != nil {
		return nil, err
	}
	if p.node, err = l.newNode(ctx, "node"); err != nil {
		return nil, err
	}
	for _, v := range p.all() {
		if err := p.node.Prepare(v); err != nil {
			return nil, err
		}
	}
	if p.floor, err = l.newMountFloor(ctx); err != nil {
		return nil, err
	}
	p.before, err = l.traffic(ctx)
	return p, err
}

// all returns the volumes in the order of their publishes.
func (p *publishing) all() []*harness.Volume { return slices.Concat(p.warm, p.cold, p.burst) }

func (p *publishing) took(name string, d time.Duration) {
	p.figures[name] = append(p.figures[name], d)
}

// call publishes a volume for which a kubelet has made everything.
func (p *publishing) call(ctx context.Context, v *harness.Volume) error {
	_, err := p.node.Node().NodePublishVolume(ctx, p.node.PublishRequest(v))
	return err
}

// countingTime is how long the API server may take to count a watch that has ended.
const countingTime = 10 * time.Second

// publishWarm times publishes of an object that is watched already, and in turn with them
// what the kernel takes for the same mount and files, and for a record.
func (p *publishing) publishWarm(ctx context.Context) error {
	before, err := p.traffic(ctx)
	if err != nil {
		return err
	}
	for i, v := range p.warm {
		begin := time.Now()
		if err := p.call(ctx, v); err != nil {
			return err
		}
		p.took("publish.warm_ms", time.Since(begin))
		took, err := p.floor.publish(ctx, i, numbered(0))
		if err != nil {
			return err
		}
		p.took("publish.floor_ms", took)
		if took, err = p.floor.record(i); err != nil {
			return err
		}
		p.took("publish.record_floor_ms", took)
	}
	return p.asked(ctx, before, 0, 0)
}

// publishCold times publishes of objects that nobody watches, and in turn with them a bare
// GET of such an object, and a bare watch until it has told the state.
func (p *publishing) publishCold(ctx context.Context) error {
	before, err := p.traffic(ctx)
	if err != nil {
		return err
	}
	for i, v := range p.cold {
		begin := time.Now()
		if err := p.call(ctx, v); err != nil {
			return err
		}
		p.took("publish.cold_ms", time.Since(begin))
		object := p.objectOfBurst(i)
		begin = time.Now()
		if _, err := p.client.CoreV1().ConfigMaps(namespace).Get(ctx, object, metav1.GetOptions{}); err != nil {
			return err
		}
		p.took("publish.get_floor_ms", time.Since(begin))
		begin = time.Now()
		if err := p.beginWatch(ctx, object); err != nil {
			return err
		}
		p.took("publish.watch_floor_ms", time.Since(begin))
	}
	return p.asked(ctx, before, 2*len(p.cold), len(p.cold))
}

// objectOfBurst returns the name of one of the burst's objects.
func (p *publishing) objectOfBurst(i int) string {
	return objectName(1 + len(p.cold) + i%len(p.burst))
}

// asked returns an error unless the API server was asked for just so many watches, and
// other requests, since before was counted. For a moment the API server counts a watch that
// ends neither as open nor as answered, so it is asked again while watches are missing.
func (p *publishing) asked(ctx context.Context, before traffic, watches, others int) error {
	for deadline := time.Now().Add(countingTime); ; {
		now, err := p.traffic(ctx)
		if err != nil {
			return err
		}
		if seen := now.since(before); seen.watches >= watches || time.Now().After(deadline) {
			return seen.want(watches, others)
		}
	}
}

// publishBurst publishes volumes of new objects all at once, and notes when each was
// answered; then as many bare watches begin.
func (p *publishing) publishBurst(ctx context.Context) error {
	before, err := p.traffic(ctx)
	if err != nil {
		return err
	}
	err = p.atOnce("publish.burst", func(i int) error { return p.call(ctx, p.burst[i]) })
	if err != nil {
		return err
	}
	if err := p.asked(ctx, before, len(p.burst), 0); err != nil {
		return err
	}
	return p.atOnce("publish.burst_floor", func(i int) error { return p.beginWatch(ctx, p.objectOfBurst(i)) })
}

// atOnce calls f for each volume of the burst, all at once, and reports how long after the
// begin each and the last call returned.
func (p *publishing) atOnce(name string, f func(i int) error) error {
	returned := make([]time.Duration, len(p.burst))
	begin := time.Now()
	err := inParallel(len(p.burst), len(p.burst), func(i int) error {
		defer func() { returned[i] = time.Since(begin) }()
		return f(i)
	})
	if err != nil {
		return err
	}
	p.figures[name+"_ms"] = returned
	p.report.Value(name+"_s", "s", slices.Max(returned).Seconds())
	return nil
}

// check returns an error unless each volume shows what it has to, and each object is
// watched once.
func (p *publishing) check(ctx context.Context) error {
	if err := p.node.mounted(1 + len(p.all())); err != nil {
		return err
	}
	for _, v := range p.warm {
		if err := p.node.shows(v, 0); err != nil {
			return err
		}
	}
	for i, v := range slices.Concat(p.cold, p.burst) {
		if err := p.node.shows(v, 1+i); err != nil {
			return err
		}
	}
	// Those of the bare watches have just ended.
	return eventually(ctx, func() error {
		return p.watched(ctx, 1+len(p.cold)+len(p.burst))
	})
}

// unpublish ends all volumes one after the other, and times that; nothing may be left.
func (p *publishing) unpublish(ctx context.Context, first *harness.Volume) error {
	for _, v := range append(p.all(), first) {
		begin := time.Now()
		request := &csi.NodeUnpublishVolumeRequest{VolumeId: v.ID(), TargetPath: p.node.Target(v)}
		if _, err := p.node.Node().NodeUnpublishVolume(ctx, request); err != nil {
			return err
		}
		p.took("publish.unpublish_ms", time.Since(begin))
		if err := p.node.CleanUp(v); err != nil {
			return err
		}
	}
	if err := p.node.mounted(0); err != nil {
		return err
	}
	records, err := p.node.Records()
	if err != nil {
		return err
	}
	if len(records) > 0 {
		return fmt.Errorf("%d records are left", len(records))
	}
	return eventually(ctx, func() error { return p.watched(ctx, 0) })
}

func (p *publishing) reportAll() error {
	for _, name := range []string{
		"publish.warm_ms", "publish.floor_ms", "publish.record_floor_ms",
		"publish.cold_ms", "publish.get_floor_ms", "publish.watch_floor_ms",
		"publish.burst_ms", "publish.burst_floor_ms", "publish.unpublish_ms",
	} {
		if err := p.report.Samples(name, "ms", measure.Milliseconds(p.figures[name])); err != nil {
			return err
		}
	}
	return nil
}
