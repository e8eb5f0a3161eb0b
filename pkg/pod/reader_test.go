package pod

import (
	"cmp"
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/internal/expect"
	"github.com/refvol/refvol/internal/must"
	"github.com/refvol/refvol/pkg/volume"
)

// fakePods are the pods of the namespace ns. It answers after a time, with err if that is not nil.
type fakePods struct {
	pods  []*corev1.Pod
	takes time.Duration
	err   error
}

func (f *fakePods) Get(ctx context.Context, name string, _ metav1.GetOptions) (*corev1.Pod, error) {
	select {
	case <-time.After(f.takes):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	for _, pod := range f.pods {
		if pod.Name == name && f.err == nil {
			return pod, nil
		}
	}
	return nil, cmp.Or(f.err, error(apierrors.NewNotFound(corev1.Resource("pods"), name)))
}

func (f *fakePods) reader() *Reader {
	return NewReader(func(namespace string) Pods {
		if namespace != "ns" {
			return &fakePods{}
		}
		return f
	})
}

func TestReader(t *testing.T) {
	web := volume.Pod{Namespace: "ns", Name: "web-0", UID: "8f7e"}
	server := &fakePods{pods: []*corev1.Pod{{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web-0", UID: "8f7e"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Env: []corev1.EnvVar{{Name: "A", Value: "1"}}}}},
	}}}
	reader := server.reader()
	read := func(pod volume.Pod, container string) (volume.Env, []string, error) {
		got, err := reader.Get(t.Context(), pod)
		if err != nil {
			return volume.Env{}, nil, err
		}
		return got.Env(container)
	}
	env, leftOut, err := read(web, "main")
	if want := (volume.Env{Vars: []volume.EnvVar{{Name: "A", Value: "1"}}}); err != nil || len(leftOut) != 0 || !reflect.DeepEqual(env, want) {
		t.Errorf("got %+v, %q, %v; want %+v", env, leftOut, err, want)
	}

	successor, none := web, web
	successor.UID, none.Name = "0a1b", "web-1"
	for _, test := range []struct {
		pod       volume.Pod
		container string
		is        func(error) bool
		want      string
	}{
		{successor, "main", apierrors.IsNotFound, `read pod ns/web-0: it has the UID 8f7e now, not 0a1b: `},
		{none, "main", apierrors.IsNotFound, `read pod ns/web-1: pods "web-1" not found`},
		{web, "side", func(err error) bool { return !apierrors.IsNotFound(err) }, `the pod has no container "side"`},
	} {
		_, _, err := read(test.pod, test.container)
		if err == nil || !test.is(err) || !strings.HasPrefix(err.Error(), test.want) {
			t.Errorf("got %v, want %s", err, test.want)
		}
	}

	static := volume.Pod{Namespace: "ns", Name: "web-node1", UID: "c0ffee"}
	mirror := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web-node1", UID: "8f7e", Annotations: map[string]string{corev1.MirrorPodAnnotationKey: "c0ffee"}}}
	server.pods = append(server.pods, mirror)
	_, err = reader.Get(t.Context(), static)
	if want := "read pod ns/web-node1: it has the UID 8f7e now, not c0ffee: a volume of a static pod can't show"; !errors.Is(err, ErrStatic) || !apierrors.IsNotFound(err) || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("got %v, want %s", err, want)
	}
	static.UID = mirror.UID
	expect.Equal(t, "a mirror", must.Get(reader.Get(t.Context(), static))(t).Mirror, true)

	server.err = errors.New("connection refused")
	if _, _, err := read(web, "main"); !errors.Is(err, server.err) || apierrors.IsNotFound(err) {
		t.Errorf("got %v", err)
	}
}

// The inline CSI volumes of a pod are found, with what its author wrote. They are writable unless it says otherwise.
func TestReaderInline(t *testing.T) {
	csi := func(name string, readOnly *bool) corev1.Volume {
		source := &corev1.CSIVolumeSource{Driver: "example.com", ReadOnly: readOnly, VolumeAttributes: map[string]string{"name": name}}
		return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{CSI: source}}
	}
	server := &fakePods{pods: []*corev1.Pod{{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web-0", UID: "8f7e"},
		Spec: corev1.PodSpec{Volumes: []corev1.Volume{
			csi("default", nil),
			{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
			csi("writable", new(false)), csi("read-only", new(true)),
		}},
	}}}
	got := must.Get(server.reader().Get(t.Context(), testPod))(t)
	want := map[string]InlineVolume{}
	for name, readOnly := range map[string]bool{"default": false, "writable": false, "read-only": true} {
		want[name] = InlineVolume{Driver: "example.com", Attributes: map[string]string{"name": name}, ReadOnly: readOnly}
	}
	expect.Equal(t, "the inline volumes", got.Inline, want)
}

// An API server may take seconds to answer. If it never answers, the request ends soon, because few requests may
// run at the same time.
func TestReaderOfASlowServer(t *testing.T) {
	for takes, want := range map[time.Duration]error{3 * time.Second: nil, time.Hour: context.DeadlineExceeded} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			server := &fakePods{pods: []*corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Name: testPod.Name, UID: testPod.UID}}}, takes: takes}
			_, err := server.reader().Get(t.Context(), testPod)
			if took := time.Since(began); !errors.Is(err, want) || took > time.Minute {
				t.Errorf("an answer after %s: got %v after %s", takes, err, took)
			}
		})
	}
}
