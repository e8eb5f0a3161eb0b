package main

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/refvol/refvol/internal/must"
	"github.com/refvol/refvol/pkg/fleet"
	"github.com/refvol/refvol/pkg/status"
	"github.com/refvol/refvol/pkg/volume"
)

// annotated returns the metadata of a ConfigMap with annotations.
func annotated(name string, annotations map[string]string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: "u", ResourceVersion: "7", Annotations: annotations},
	}
}

// fakeObjects returns a client of an API server with objects.
func fakeObjects(t *testing.T, objects ...runtime.Object) *metadatafake.FakeMetadataClient {
	t.Helper()
	scheme := metadatafake.NewTestScheme()
	must.Do(t, metav1.AddMetaToScheme(scheme))
	return metadatafake.NewSimpleMetadataClient(scheme, objects...)
}

// TestSetRollout: a change names the version that was looked at, so that it can't overwrite what somebody else has written meanwhile.
func TestSetRollout(t *testing.T) {
	client := fakeObjects(t)
	var patch string
	client.PrependReactor("patch", "configmaps", func(action clienttesting.Action) (bool, runtime.Object, error) {
		asked, _ := action.(clienttesting.PatchActionImpl)
		patch = string(asked.Patch)
		return true, annotated("app", nil), nil
	})
	const version = `"resourceVersion":"7","uid":"u"`
	for what, test := range map[string]struct {
		isCanary bool
		to       string
		after    *string
		want     string
	}{
		"a step":               {false, "10%", new("0%"), `{"refvol.dev/rollout":"10%","refvol.dev/rollout-after":"0%"}`},
		"the end":              {false, "0%", nil, `{"refvol.dev/rollout":"0%","refvol.dev/rollout-after":null}`},
		"the end of one value": {false, "", nil, `{"refvol.dev/rollout":null,"refvol.dev/rollout-after":null}`},
		"a canary":             {true, "10%", nil, `{"refvol.dev/canary":"10%"}`},
	} {
		from := &rolloutState{Version: status.Version{UID: "u", ResourceVersion: "7"}, isCanary: test.isCanary}
		must.Get((&cluster{metadata: client}).setRollout(t.Context(), fleet.Object{Kind: "ConfigMap", Namespace: "shop", Name: "app"}, from, test.to, test.after))(t)
		if want := `{"metadata":{"annotations":` + test.want + `,` + version + `}}`; patch != want {
			t.Errorf("%s: got %s, want %s", what, patch, want)
		}
	}
}

// TestRolloutEvents: events that say that a rollout failed are warnings.
func TestRolloutEvents(t *testing.T) {
	object := fleet.Object{Kind: "Secret", Namespace: "shop", Name: "db"}
	for reason, want := range map[string]string{
		eventStarted: corev1.EventTypeNormal, eventDone: corev1.EventTypeNormal, eventStopped: corev1.EventTypeWarning, eventReverted: corev1.EventTypeWarning,
	} {
		client := fake.NewClientset()
		must.Do(t, (&cluster{client: client}).event(t.Context(), object, status.Version{UID: "u", ResourceVersion: "7"}, reason, "text"))
		events := must.Get(client.CoreV1().Events("shop").List(t.Context(), metav1.ListOptions{}))(t).Items
		if len(events) != 1 || events[0].Type != want || events[0].Reason != reason || events[0].Message != "text" ||
			events[0].InvolvedObject != (corev1.ObjectReference{APIVersion: "v1", Kind: "Secret", Namespace: "shop", Name: "db", UID: "u", ResourceVersion: "7"}) {
			t.Errorf("%s: got %+v, want a %s", reason, events, want)
		}
	}
}

// TestRolloutsOfANamespace: an object is listed if it is held, a canary, also one without a share yet, or paused, also without a rollout.
func TestRolloutsOfANamespace(t *testing.T) {
	client := fake.NewClientset(&storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "n"}},
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "refvol-system", Name: "plugin", Labels: map[string]string{"app": "plugin"}}})
	c := &cluster{client: client, opts: &clusterOptions{namespace: "refvol-system", selector: "app=plugin", driver: driverName}}
	c.metadata = fakeObjects(t, annotated("bare", nil), annotated("after", map[string]string{afterAnnotation: "0%"}),
		annotated("held", map[string]string{volume.RolloutAnnotation: "10%"}),
		annotated("canary", map[string]string{volume.CanaryAnnotation: ""}),
		annotated("paused", map[string]string{pausedAnnotation: "true"}))
	list := must.Get(c.rollouts(t.Context(), "shop"))(t)
	var got []string
	for _, item := range list.Items {
		got = append(got, fmt.Sprintf("%s %t %q %t", item.Name, item.Canary, item.Share, item.Paused))
	}
	if got, want := strings.Join(got, ", "), `canary true "" false, held false "10%" false, paused false "" true`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// TestSignOfAPod: what a pod's own status says about it.
func TestSignOfAPod(t *testing.T) {
	survey := &fleet.Survey{Nodes: []fleet.Node{
		{Name: "n"}, {Name: "lost", Problem: &fleet.Problem{Reason: fleet.NodeNotReady}}, {Name: "bare", Problem: &fleet.Problem{Reason: fleet.NoPlugin}},
	}}
	taker := &fleet.Taker{Pod: status.Pod{UID: "u"}, Current: true}
	for what, change := range map[string]func(*corev1.Pod){
		"has": func(*corev1.Pod) {},
		"has ready": func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		},
		"has failed":      func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed },
		"has leaves":      func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded },
		"has leaves soon": func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} },
		"has unknown": func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue}}
		},
		"has unknown there":    func(p *corev1.Pod) { p.Spec.NodeName = "lost" },
		"has without a plugin": func(p *corev1.Pod) { p.Spec.NodeName = "bare" },
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", CreationTimestamp: metav1.Unix(7, 0)}, Spec: corev1.PodSpec{NodeName: "n"}}
		change(pod)
		s := sign(pod, taker, survey)
		for word, is := range map[string]bool{"has": s.Has, "ready": s.Ready, "failed": s.Failed, "leaves": s.Leaves, "unknown": s.Unknown} {
			if want := strings.Contains(" "+what+" ", " "+word+" "); is != want {
				t.Errorf("%s: %s is %t", what, word, is)
			}
		}
		if s.UID != "u" || s.Name != "shop/web" || s.Created.Unix() != 7 {
			t.Errorf("%s: got %+v", what, s)
		}
	}
}

// TestTakeBackWithoutAnnotation: a canary whose annotation somebody has removed, so that all pods would show it, gets the annotation again.
func TestTakeBackWithoutAnnotation(t *testing.T) {
	f := newFakeCanary(1)
	f.objects["app"].state.isCanary = false
	f.change("app", "new", "")
	r := f.roller()
	r.now = []*rolloutState{{isCanary: true, share: "10%"}}
	must.Do(t, r.takeBack(t.Context(), 0))
	if state := f.objects["app"].state; !state.isCanary || state.share != "0%" {
		t.Errorf("got %+v", state)
	}
}

// TestQuoted: a shell reads the words that a printed command has.
func TestQuoted(t *testing.T) {
	for _, word := range []string{"plain", "a b", "it's", "'", "$(x)", `a"b\c`, "~", "*"} {
		out, err := exec.CommandContext(t.Context(), "sh", "-c", "printf %s "+quoted(word)).Output()
		if err != nil || string(out) != word {
			t.Errorf("%s: a shell reads %q: %v", quoted(word), out, err)
		}
	}
}
