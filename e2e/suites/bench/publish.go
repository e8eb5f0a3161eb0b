package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/suites/bench/measure"
	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/pkg/mount"
	refvol "github.com/refvol/refvol/pkg/volume"
	"github.com/refvol/refvol/pkg/writer"
)

const volumesOfPod = 3

// runPublish is B5.
func runPublish(ctx context.Context, l *lab) error {
	count, pods := scaled(l, 20, 500), scaled(l, 10, 110)
	fatal(l.create(ctx, 1+count+pods*volumesOfPod, state))
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

// publish is B5 with an identity. Warm volumes show object 0; cold ones and those of the burst have an object each,
// which follow that one.
func (l *lab) publish(ctx context.Context, identity identity, count, pods int) (err error) {
	defer catch(&err)
	first, warm := identity.volume(objectName(0)), identity.volumes(count, 1)
	var cold, burst []*harness.Volume
	for k := range count {
		cold = append(cold, identity.volume(objectName(1+k)))
	}
	for k := range pods {
		burst = append(burst, identity.volumesOfOne(fmt.Sprintf("pod-%s-%d", identity, k), 1+count+k*volumesOfPod)...)
	}
	all := slices.Concat([]*harness.Volume{first}, warm, cold, burst)
	// What a kubelet makes comes first.
	n := l.newNode(ctx, identity, "node-"+string(identity))
	for _, v := range all {
		fatal(n.Prepare(v))
	}
	n.storePods(ctx, all...)
	floor := l.newMountFloor(ctx, "floor-"+string(identity), count)

	figures := map[string][]time.Duration{}
	timed := func(name string, f func() error) error {
		begin := time.Now()
		err := f()
		figures[name] = append(figures[name], time.Since(begin))
		return err
	}
	call := func(v *harness.Volume) error {
		_, err := n.CSI().NodePublishVolume(ctx, n.PublishRequest(v))
		return err
	}
	// Somebody watches object 0 from here on.
	fatal(call(first))
	for i, v := range warm {
		fatal(errors.Join(
			timed("warm_ms", func() error { return call(v) }),
			timed("floor_ms", func() error { return floor(i) }),
			timed("pod_floor_ms", func() error {
				_, err := l.client.CoreV1().Pods(namespace).Get(ctx, v.Pod, metav1.GetOptions{})
				return err
			}),
		))
	}
	for i, v := range cold {
		fatal(errors.Join(
			timed("cold_ms", func() error { return call(v) }),
			timed("get_floor_ms", func() error {
				_, err := l.configMaps().Get(ctx, objectName(1+count+i%len(burst)), metav1.GetOptions{})
				return err
			}),
		))
	}
	begin := time.Now()
	fatal(inParallel(len(burst), len(burst), func(i int) error { return call(burst[i]) }))
	l.report.Value(identity.figure("publish", "burst_s"), "s", time.Since(begin).Seconds())

	fatal(errors.Join(
		n.mounted(len(all)),
		n.show(slices.Concat([]*harness.Volume{first}, warm), always(state(0))),
		n.show(slices.Concat(cold, burst), func(i int) string { return state(1 + i) }),
		eventually(ctx, func() error { return l.watched(ctx, 1+len(cold)+len(burst)) }),
		n.Close(),
		eventually(ctx, func() error { return l.watched(ctx, 0) }),
	))
	for name, all := range figures {
		fatal(l.report.Samples(identity.figure("publish", name), "ms", measure.Milliseconds(all)))
	}
	return nil
}

// volumesOfOne returns the volumes of one pod, each of another object; the first has the number first.
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

// newMountFloor returns what makes the i-th of so many volumes with nothing around the mount and its files: no
// request can be answered before that is done. The volumes show object 0, and go with the scenario.
func (l *lab) newMountFloor(ctx context.Context, name string, count int) func(i int) error {
	dir := filepath.Join(l.dir, name)
	parent := func(i int) string { return filepath.Join(dir, fmt.Sprint("floor-", i)) }
	tree := &refvol.Payload{DirMode: 0o755, UID: refvol.NoOwner, GID: refvol.NoOwner}
	for _, key := range []string{paddingKey, valueKey} {
		tree.Files = append(tree.Files, refvol.File{Path: key, Data: []byte(configMap("", state(0)).Data[key]), Mode: 0o644})
	}
	for i := range count {
		fatal(os.MkdirAll(parent(i), 0o755))
	}
	l.onEnd(func() error {
		mounts, err := harness.MountsBelow(dir)
		for _, m := range mounts {
			err = errors.Join(err, os.NewSyscallError("umount2 "+m.Target, unix.Unmount(m.Target, unix.MNT_DETACH)))
		}
		return err
	})
	mounter := must(mount.New(ctx, mount.Options{Driver: harness.DriverName, KubeletDir: dir}))
	return func(i int) (err error) {
		v, err := mounter.Create(ctx, mount.Params{
			VolumeID: fmt.Sprint("floor-", i), Size: 32 << 20, Inodes: 1 << 15, Mode: tree.DirMode, UID: tree.UID, GID: tree.GID,
		})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, v.Close()) }()
		if _, err := writer.New(writer.Options{}).Write(ctx, v.Root(), tree); err != nil {
			return err
		}
		return v.Attach(ctx, filepath.Join(parent(i), "mount"))
	}
}
