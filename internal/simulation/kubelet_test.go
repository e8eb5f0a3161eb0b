package simulation

import (
	"context"
	"fmt"
	"hash/fnv"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/internal/history"
	"github.com/refvol/refvol/pkg/authz"
	"github.com/refvol/refvol/pkg/volume"
)

// simVolume is the volume of one pod after another.
type simVolume struct {
	w                  *world
	name, account      string
	required, optional []string
	canaries           []string
	attributes         map[string]string
	// inPlace, pinned, removes, isSet say what the attributes say. spread is that attribute.
	inPlace, pinned, removes, isSet bool
	spread                          time.Duration
	// lives is how long a pod of it runs; 0 means until an author changes its mind.
	lives time.Duration

	isWanted atomic.Bool
	// running is the pod whose volume is published, or nil.
	running atomic.Pointer[simPod]
}

// simPod is one pod and its volume's request.
type simPod struct {
	uid       types.UID
	name      string
	volumeID  string
	target    string
	isMounted bool // its first publish succeeded
	failures  int  // in a row
	// unanswered is when the first publish began that got no answer, because the process was killed; zero for none.
	unanswered time.Duration
	startedAt  time.Time
	attributes map[string]string
}

func newVolumes(w *world) []*simVolume {
	all := []*simVolume{
		{account: "a", required: []string{"c1"}, optional: []string{"c2"}},
		{account: "a", required: []string{"s1", "c1"}, inPlace: true},
		{account: "a", required: []string{"c3", "x1"}},
		{account: "b", required: []string{"c2", "x1"}, optional: []string{"x2"}},
		{account: "b", required: []string{"c1", "c2", "c3", "s1"}, spread: time.Minute},
		{account: "a", required: []string{"x1", "c2"}, lives: 30 * time.Second},
		{account: "b", required: []string{"c1", "c3", "s1"}, attributes: map[string]string{"sources": `
- env: {path: app.env, env: [{name: C3_A, valueFrom: {configMapKeyRef: {name: c3, key: c3-a}}}, {name: S1_A, valueFrom: {secretKeyRef: {name: s1, key: s1-a}}}]}
- expand: {path: expanded, configMap: {name: c1, key: c1-b}, env: [{name: S1_A, valueFrom: {secretKeyRef: {name: s1, key: s1-a}}}]}
`}},
		{account: "a", required: []string{"c2"}, optional: []string{"c3"}, removes: true},
		{account: "a", required: []string{"s1"}, pinned: true},
		{account: "b", required: []string{"c3"}, lives: 3 * time.Minute},
		{account: "a", required: pair, isSet: true},
		{account: "b", required: pair, isSet: true, removes: true, lives: 20 * time.Second},
		{account: "a", required: pair, isSet: true, spread: time.Minute, lives: 10 * time.Minute},
		{account: "a", required: []string{"c1"}, canaries: []string{canaryName}},
		{account: "b", required: []string{"c3"}, optional: []string{"c2"}, canaries: []string{canaryName}, lives: 90 * time.Second},
		{account: "b", required: []string{"c2"}, canaries: []string{canaryName}, spread: time.Minute, lives: 7 * time.Minute},
	}
	for i, v := range all {
		v.w, v.name = w, fmt.Sprint("v", i)
		attributes := map[string]string{"sources": sources(w, v.required, v.optional, v.canaries)}
		maps.Copy(attributes, v.attributes)
		set := func(is bool, key, value string) {
			if is {
				attributes[key] = value
			}
		}
		set(v.inPlace, "writeStrategy", "InPlace")
		set(v.pinned, "updatePolicy", "Pinned")
		set(v.removes, "onDelete", "Remove")
		set(v.isSet, "sameRevision", "true")
		set(v.spread > 0, "spread", v.spread.String())
		v.attributes = attributes
	}
	return all
}

func (v *simVolume) refs() []string { return slices.Concat(v.required, v.optional, v.canaries) }

func (v *simVolume) wants() bool { return v.isWanted.Load() && !v.w.isEnding.Load() }

// live is the kubelet: it publishes until that succeeds, publishes again, and unpublishes until that succeeds.
func (v *simVolume) live() {
	for pods := 0; !v.w.isEnding.Load(); {
		if v.lives > 0 {
			v.isWanted.Store(true)
		}
		if !v.wants() || v.w.isCalm.Load() {
			after(time.Second)
			continue
		}
		pods++
		p := v.newPod(pods)
		began := time.Now()
		for v.wants() && (v.lives == 0 || v.w.isCalm.Load() || time.Since(began) < v.lives) {
			v.publish(p)
		}
		v.running.Store(nil)
		for !v.unpublish(p) {
			after(time.Second)
		}
		v.w.server.set(func() { delete(v.w.server.pods, namespace+"/"+p.name) })
		must(os.RemoveAll(filepath.Join(v.w.kubeletDir, "pods", string(p.uid))))
		if v.lives > 0 {
			after(time.Duration(v.w.roll(v.name+" next", 20)) * time.Second)
		}
	}
}

// newPod makes a pod, in the API and in the kubelet's directory, and declares its volume.
func (v *simVolume) newPod(n int) *simPod {
	name := fmt.Sprint(v.name, "-", n)
	p := &simPod{uid: types.UID("uid-" + name), name: name, volumeID: "csi-" + name, attributes: v.attributes, startedAt: time.Now()}
	p.target = filepath.Join(v.w.kubeletDir, "pods", string(p.uid), "volumes/kubernetes.io~csi/settings/mount")
	must(os.MkdirAll(filepath.Dir(p.target), 0o755))
	declared := history.Volume{
		ID: p.volumeID, Account: v.account, Required: v.required, Optional: v.optional, Canaries: v.canaries, InPlace: v.inPlace, Pinned: v.pinned, Removes: v.removes, IsJoined: v.name == "v6", IsSet: v.isSet,
		Place: volume.RolloutPlace(p.uid),
	}
	for _, object := range v.refs() {
		// A pod's account needs a right to all that it reads by itself, and to what is in another namespace.
		if v.w.mode.identity == authz.IdentityPod || v.w.objects[object].Namespace != namespace {
			declared.NeedsConsent = append(declared.NeedsConsent, object)
		}
	}
	if v.spread > 0 {
		declared.LastMoment = v.lastMoment(p)
	}
	v.w.Declare(declared)
	object := v.podObject(p)
	v.w.server.set(func() { v.w.server.pods[namespace+"/"+p.name] = object })
	return p
}

// lastMoment returns the function that docs/updates.md describes: one moment in each window, by a hash of the pod's UID.
func (v *simVolume) lastMoment(p *simPod) func(at time.Duration) time.Duration {
	began := time.Now().Add(-v.w.Now()).UnixNano()
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(p.uid))
	offset := int64(hash.Sum64() % uint64(v.spread))
	return func(at time.Duration) time.Duration {
		now := began + int64(at)
		moment := now - now%int64(v.spread) + offset
		if moment > now {
			moment -= int64(v.spread)
		}
		return time.Duration(moment - began)
	}
}

func (v *simVolume) podObject(p *simPod) *corev1.Pod {
	yes := true
	spec := corev1.PodSpec{ServiceAccountName: v.account, Volumes: []corev1.Volume{{Name: "settings", VolumeSource: corev1.VolumeSource{
		CSI: &corev1.CSIVolumeSource{Driver: driver, ReadOnly: &yes, VolumeAttributes: p.attributes},
	}}}}
	if v.w.mode.identity == authz.IdentityNode { // the pod's own spec must name what the node reads for it
		for _, object := range v.refs() {
			ref := v.w.objects[object]
			native := corev1.Volume{Name: "native-" + object}
			if ref.Kind == volume.Secret {
				native.Secret = &corev1.SecretVolumeSource{SecretName: ref.Name, Optional: &yes}
			} else {
				native.ConfigMap = &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: ref.Name}, Optional: &yes}
			}
			spec.Volumes = append(spec.Volumes, native)
		}
	}
	return &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: p.name, UID: p.uid}, Spec: spec,
	}
}

func (v *simVolume) request(p *simPod) *csipb.NodePublishVolumeRequest {
	volumeContext := map[string]string{
		"csi.storage.k8s.io/pod.namespace": namespace, "csi.storage.k8s.io/pod.name": p.name, "csi.storage.k8s.io/pod.uid": string(p.uid),
		"csi.storage.k8s.io/serviceAccount.name": v.account, "csi.storage.k8s.io/ephemeral": "true",
	}
	maps.Copy(volumeContext, p.attributes)
	req := &csipb.NodePublishVolumeRequest{
		VolumeId: p.volumeID, TargetPath: p.target, Readonly: true, VolumeContext: volumeContext,
		VolumeCapability: &csipb.VolumeCapability{AccessType: &csipb.VolumeCapability_Mount{Mount: &csipb.VolumeCapability_MountVolume{}}},
	}
	if v.w.mode.identity == authz.IdentityPod {
		req.Secrets = map[string]string{"csi.storage.k8s.io/serviceAccount.tokens": v.w.server.token(p.uid, v.account)}
	}
	return req
}

// publish makes one call, and waits until the next one.
func (v *simVolume) publish(p *simPod) {
	proc := v.w.process.Load()
	if proc == nil {
		after(500 * time.Millisecond)
		return
	}
	begin := v.w.Now()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	stop := context.AfterFunc(proc.wire, cancel) // the socket is closed
	_, err := proc.calls.NodePublishVolume(ctx, v.request(p))
	stop()
	cancel()
	switch {
	case proc.dead.Load():
		if p.unanswered == 0 {
			p.unanswered = begin
		}
		v.w.Met("killed during a publish")
		after(time.Second)
		return
	case err != nil:
		code := status.Code(err).String()
		v.w.Met("publish: " + code)
		p.unanswered = 0
		v.w.Add(history.Event{Kind: history.Failed, Volume: p.volumeID, Begin: begin, Code: code, Text: err.Error()})
		after(min(time.Second<<min(p.failures, 5), 20*time.Second))
		p.failures++
		return
	}
	p.failures = 0
	v.w.Met(map[bool]string{false: "published", true: "republished"}[p.isMounted])
	if p.unanswered != 0 { // that call may have mounted the volume
		begin, p.unanswered = p.unanswered, 0
	}
	v.w.Add(history.Event{Kind: history.Published, Volume: p.volumeID, Begin: begin})
	p.isMounted = true
	v.running.Store(p)
	for next := time.Now().Add(time.Duration(60+v.w.roll(v.name+" republish", 30)) * time.Second); v.wants() && time.Now().Before(next); {
		after(time.Second)
		if v.lives > 0 && time.Since(p.startedAt) > v.lives && !v.w.isCalm.Load() {
			return
		}
	}
}

func (v *simVolume) unpublish(p *simPod) bool {
	proc := v.w.process.Load()
	if proc == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	_, err := proc.calls.NodeUnpublishVolume(ctx, &csipb.NodeUnpublishVolumeRequest{VolumeId: p.volumeID, TargetPath: p.target})
	switch {
	case proc.dead.Load():
		v.w.Met("killed during an unpublish")
		return false
	case err != nil && status.Code(err).String() != "Unavailable":
		v.w.Errorf("unpublish %s: %v", p.volumeID, err)
	case err == nil:
		v.w.Met("unpublished")
		v.w.Add(history.Event{Kind: history.Unpublished, Volume: p.volumeID})
	}
	return err == nil
}
