package integration

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/pkg/volume"
)

const (
	// pairs is how often TestSets changes both objects of a set, and betweenObjects the time between the two.
	pairs          = 60
	betweenObjects = 40 * time.Millisecond
)

// TestSets: readers of a volume with sameRevision never see a mix of two objects that are changed one after the other. While they don't match,
// a restarted plugin keeps the old files, and a new volume waits.
func TestSets(t *testing.T) {
	t.Parallel()
	n := newNode(t, "--publish-wait=2s", anyStatusPort)
	put := func(name string, i int) {
		t.Helper()
		cm := &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: n.namespace, Name: name, Annotations: map[string]string{volume.RevisionAnnotation: fmt.Sprint("r", i)}},
			Data:       map[string]string{name: fmt.Sprint(i)},
		}
		if _, err := n.tryConfigMap(cm); err != nil {
			t.Fatal(err)
		}
	}
	put("user", 0)
	put("password", 0)
	shows := func() *harness.Volume {
		return n.volume(map[string]string{"sources": "[{configMap: {name: user}}, {configMap: {name: password}}]", "sameRevision": "true"})
	}
	v := shows()
	n.publishes(v, soon)
	ctx, stop := context.WithCancel(t.Context())
	results := make(chan error)
	const readers = 3
	for range readers {
		go func() { results <- readPairs(ctx, n.Target(v)) }()
	}
	for i := range pairs {
		first, second := "user", "password"
		if i%2 == 1 {
			first, second = second, first
		}
		put(first, i+1)
		<-time.After(betweenObjects)
		put(second, i+1)
	}
	n.arrives(v, "user", fmt.Sprint(pairs), soon)
	stop()
	for range readers {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	n.wantContent(v, "password", fmt.Sprint(pairs))

	put("user", pairs+1)
	n.allAre([]*harness.Volume{v}, "Split", fmt.Sprintf("user carries r%d", pairs+1))
	n.mustKill()
	n.mustStart()
	n.allAre([]*harness.Volume{v}, "Split", fmt.Sprintf("user carries r%d", pairs+1))
	n.wantContent(v, "user", fmt.Sprint(pairs))
	n.wantContent(v, "password", fmt.Sprint(pairs))
	late := shows()
	if err := n.Publish(t.Context(), late); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("user carries r%d", pairs+1)) {
		t.Errorf("a new volume of a split set: %v", err)
	}
	n.hasEvent(late, "Split", "must carry the same refvol.dev/revision")
	waiting := n.publishing(late)
	put("password", pairs+1)
	if err := n.answer(waiting, soon); err != nil {
		t.Errorf("a new volume of a set that matches again: %v", err)
	}
	for _, v := range []*harness.Volume{v, late} {
		n.arrives(v, "user", fmt.Sprint(pairs+1), soon)
		n.wantContent(v, "password", fmt.Sprint(pairs+1))
		n.mustUnpublish(v)
	}
	n.wantNothingLeft()
}

// readPairs reads both files of one generation, again and again, until ctx ends. It returns an error if they differ.
func readPairs(ctx context.Context, target string) error {
	reads := 0
	for ctx.Err() == nil {
		user, password, err := readPair(target)
		if errors.Is(err, fs.ErrNotExist) { // the generation has gone meanwhile
			continue
		}
		if err != nil {
			return err
		}
		if reads++; user != password {
			return fmt.Errorf("read %d: user %s with password %s", reads, user, password)
		}
	}
	if reads == 0 {
		return errors.New("nothing was read")
	}
	return nil
}

func readPair(target string) (user, password string, err error) {
	root, err := os.OpenRoot(filepath.Join(target, "..data"))
	if err != nil {
		return "", "", err
	}
	defer root.Close()
	first, err := root.ReadFile("user")
	if err != nil {
		return "", "", err
	}
	second, err := root.ReadFile("password")
	return string(first), string(second), err
}
