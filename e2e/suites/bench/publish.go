package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/suites/bench/measure"
	"github.com/refvol/refvol/e2e/tools/harness"
)

// volumesOfPod is how many volumes a pod of the burst has.
const volumesOfPod = 3

// publishing is B5 under way. Its methods are called by one goroutine.
type publishing struct {
	*lab
	identity identity
	node     *node
	floor    *mountFloor
	// warm volumes show object 0; cold and burst have an object for each volume, which
	// follow that one.
	warm, cold, burst []*harness.Volume
	// figures are the samples by the name of their result, without the scenario's.
	figures map[string][]time.Duration
}

// runPublish is B5: how long the kubelet waits for the answer to NodePublishVolume, when
// the object is watched already, when nobody has asked for it yet, and when all pods of a
// node start at once.
func runPublish(ctx context.Context, l *lab) error {
	count, pods := scaled(l, 20, 500), scaled(l, 10, 110)
	if err := l.create(ctx, 1+count+pods*volumesOfPod, state); err != nil {
		return err
	}
	for _, i := range identities() {
		if err := l.publish(ctx, i, count, pods); err != nil {
			return fmt.Errorf("--identity=%s: %w", i, err)
		}
	}
	// With the node's rights each publish gets the pod beside all else.
	get := l.report.P50("publish.node_pod_floor_ms")
	for name, of := range map[string]string{"publish.node_warm_ratio": "warm_ms", "publish.node_cold_ratio": "cold_ms"} {
		l.report.Value(name, "ratio", l.report.P50(asNode.figure("publish", of))/(l.report.P50(asPlugin.figure("publish", of))+get))
	}
	return nil
}

// publish is B5 with an identity.
func (l *lab) publish(ctx context.Context, i identity, count, pods int) error {
	p, err := l.newPublishing(ctx, i, count, pods)
	if err != nil {
		return err
	}
	// Somebody watches object 0 from here on.
	first := i.volume(objectName(0))
	if err := p.node.storePods(ctx, []*harness.Volume{first}); err != nil {
		return err
	}
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
	return errors.Join(p.node.Close(), p.reportAll())
}

// newPublishing makes the volumes, their pods and what a kubelet makes for them. The objects are
// there.
func (l *lab) newPublishing(ctx context.Context, i identity, count, pods int) (*publishing, error) {
	p := &publishing{lab: l, identity: i, warm: i.volumes(count, 1), figures: map[string][]time.Duration{}}
	for k := range count {
		p.cold = append(p.cold, i.volume(objectName(1+k)))
	}
	for k := range pods {
		p.burst = append(p.burst, i.volumesOfOne(fmt.Sprintf("pod-%s-%d", i, k), 1+count+k*volumesOfPod)...)
	}
	var err error
	if p.node, err = l.newNodeAs(ctx, i); err != nil {
		return nil, err
	}
	for _, v := range p.all() {
		if err := p.node.Prepare(v); err != nil {
			return nil, err
		}
	}
	if err := p.node.storePods(ctx, p.all()); err != nil {
		return nil, err
	}
	p.floor, err = l.newMountFloor(ctx, "floor-"+string(i))
	return p, err
}

// volumesOfOne returns the volumes of one pod, each of another object; the first has the number
// first.
func (i identity) volumesOfOne(pod string, first int) []*harness.Volume {
	var all []*harness.Volume
	var beside []corev1.Volume
	for k := range volumesOfPod {
		v := i.volume(objectName(first + k))
		v.Pod, v.Name = pod, fmt.Sprint("volume-", k)
		if k > 0 {
			v.UID = all[0].UID
		}
		all, beside = append(all, v), append(beside, v.Beside...)
	}
	for _, v := range all {
		v.Beside = beside // the Node authorizer reads a pod's spec once
	}
	return all
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

// publishWarm times publishes of an object that is watched already, and in turn with them
// what the kernel takes for the same mount and files, and a bare GET of the pod if the
// publish has one.
func (p *publishing) publishWarm(ctx context.Context) error {
	for i, v := range p.warm {
		begin := time.Now()
		if err := p.call(ctx, v); err != nil {
			return err
		}
		p.took("warm_ms", time.Since(begin))
		took, err := p.floor.publish(ctx, i, configMap(objectName(0), state(0)))
		if err != nil {
			return err
		}
		p.took("floor_ms", took)
		if p.identity == asNode {
			begin = time.Now()
			if _, err := p.client.CoreV1().Pods(namespace).Get(ctx, v.Pod, metav1.GetOptions{}); err != nil {
				return err
			}
			p.took("pod_floor_ms", time.Since(begin))
		}
	}
	return nil
}

// publishCold times publishes of objects that nobody watches, and in turn with them a bare
// GET of such an object, and a bare watch until it has told the state.
func (p *publishing) publishCold(ctx context.Context) error {
	for i, v := range p.cold {
		begin := time.Now()
		if err := p.call(ctx, v); err != nil {
			return err
		}
		p.took("cold_ms", time.Since(begin))
		object := p.objectOfBurst(i)
		begin = time.Now()
		if _, err := p.client.CoreV1().ConfigMaps(namespace).Get(ctx, object, metav1.GetOptions{}); err != nil {
			return err
		}
		p.took("get_floor_ms", time.Since(begin))
		begin = time.Now()
		if err := p.beginWatch(ctx, object); err != nil {
			return err
		}
		p.took("watch_floor_ms", time.Since(begin))
	}
	return nil
}

// objectOfBurst returns the name of one of the burst's objects.
func (p *publishing) objectOfBurst(i int) string {
	return objectName(1 + len(p.cold) + i%len(p.burst))
}

// publishBurst publishes volumes of new objects all at once, and notes when each was
// answered; then as many bare watches begin.
func (p *publishing) publishBurst(ctx context.Context) error {
	if err := p.atOnce("burst", func(i int) error { return p.call(ctx, p.burst[i]) }); err != nil {
		return err
	}
	return p.atOnce("burst_floor", func(i int) error { return p.beginWatch(ctx, p.objectOfBurst(i)) })
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
	p.report.Value(p.identity.figure("publish", name+"_s"), "s", slices.Max(returned).Seconds())
	return nil
}

// check returns an error unless each volume shows what it has to, and each object is
// watched once.
func (p *publishing) check(ctx context.Context) error {
	if err := p.node.mounted(1 + len(p.all())); err != nil {
		return err
	}
	if err := errors.Join(
		p.node.show(p.warm, always(state(0))),
		p.node.show(slices.Concat(p.cold, p.burst), func(i int) string { return state(1 + i) }),
	); err != nil {
		return err
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
		p.took("unpublish_ms", time.Since(begin))
		if err := p.node.CleanUp(v); err != nil {
			return err
		}
	}
	if err := p.node.mounted(0); err != nil {
		return err
	}
	return eventually(ctx, func() error { return p.watched(ctx, 0) })
}

func (p *publishing) reportAll() error {
	for _, name := range slices.Sorted(maps.Keys(p.figures)) {
		if err := p.report.Samples(p.identity.figure("publish", name), "ms", measure.Milliseconds(p.figures[name])); err != nil {
			return err
		}
	}
	return nil
}
