package loglimit

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/refvol/refvol/internal/leak"
	"github.com/refvol/refvol/internal/leak/leaklog"
	"github.com/refvol/refvol/pkg/volume"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const leftOut = "Lines about the volumes of a pod were left out"

// testLog is a log that is read bit by bit.
type testLog struct {
	leak.Log
	taken int
}

func (l *testLog) take() []string {
	text := l.String()[l.taken:]
	l.taken += len(text)
	return slices.Collect(strings.Lines(text))
}

// bubble runs a test with fake time, a Limiter and its log. count returns the counted lines.
func bubble(t *testing.T, test func(t *testing.T, l *Limiter, logger klog.Logger, log *testLog, count func() int)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		log, n := &testLog{}, 0
		logger := leaklog.New(t, log)
		l := New(logger, func() { n++ })
		test(t, l, logger, log, func() int { return n })
		l.Close()
	})
}

func podOf(uid types.UID) volume.Pod {
	return volume.Pod{Namespace: "shop", Name: "pod-" + string(uid), UID: uid}
}

// wantLeftOut fails the test unless the last line says how many lines of a pod were left out, and no other line does.
func wantLeftOut(t *testing.T, lines []string, pod volume.Pod, n int) {
	t.Helper()
	for i, line := range lines {
		if strings.Contains(line, leftOut) != (i == len(lines)-1) {
			t.Fatalf("line %d of %d is %s", i, len(lines), line)
		}
	}
	want := fmt.Sprintf(`"%s" pod="%s/%s" podUID="%s" lines=%d`, leftOut, pod.Namespace, pod.Name, pod.UID, n)
	if len(lines) == 0 || !strings.Contains(lines[len(lines)-1], want) {
		t.Errorf("the lines are %q, want %s", lines, want)
	}
}

// A pod has so many lines a minute. Then one line says how many were left out, also if nothing is logged any more.
func TestLinesAreLeftOut(t *testing.T) {
	bubble(t, func(t *testing.T, l *Limiter, logger klog.Logger, log *testLog, count func() int) {
		logger = l.Logger(logger, podOf("a"))
		total := 0
		for minute := range 3 {
			for i := range maxLines + 10 + minute {
				if i%2 == 0 {
					logger.Error(errors.New("bad"), "It failed")
				} else {
					logger.Info("It is well", "i", i)
				}
			}
			total += 10 + minute
			if n := len(log.take()); n != maxLines {
				t.Errorf("minute %d: %d lines, want %d", minute, n, maxLines)
			}
			<-time.After(period)
			synctest.Wait()
			wantLeftOut(t, log.take(), podOf("a"), 10+minute)
		}
		if count() != total {
			t.Errorf("%d lines are counted, want %d", count(), total)
		}
		logger.Info("It is well")
		<-time.After(10 * period)
		synctest.Wait()
		if lines := log.take(); len(lines) != 1 || len(l.pods) > 0 {
			t.Errorf("a silent pod is kept: %d, %q", len(l.pods), lines)
		}
	})
}

// Pods don't share a limit, and lines of a pod without a UID and details have none.
func TestPodsHaveTheirOwnLimits(t *testing.T) {
	bubble(t, func(t *testing.T, l *Limiter, logger klog.Logger, log *testLog, count func() int) {
		for range 2 * maxLines {
			l.Logger(logger, podOf("a")).WithName("x").WithValues("k", "v").WithCallDepth(0).Info("It failed")
			l.Logger(logger, volume.Pod{Name: "nobody's"}).Info("It failed")
			l.Logger(logger, podOf("a")).V(1).Info("It failed")
		}
		if n := len(log.take()); n != 5*maxLines {
			t.Errorf("%d lines, want %d", n, 5*maxLines)
		}
		for range maxLines {
			l.Logger(logger, podOf("b")).Info("It failed")
		}
		if n := len(log.take()); n != maxLines || count() != maxLines {
			t.Errorf("another pod logs %d lines, and %d are left out; want %d and %d", n, count(), maxLines, maxLines)
		}
	})
}

// Close logs what waits for the end of the minute. The line has the pod's name, whichever line had it.
func TestClose(t *testing.T) {
	bubble(t, func(t *testing.T, l *Limiter, logger klog.Logger, log *testLog, _ func() int) {
		for i := range maxLines + 1 {
			pod := podOf("a")
			if i != 7 {
				pod = volume.Pod{UID: "a"}
			}
			l.Logger(logger, pod).Info("It failed")
		}
		log.take()
		l.Close()
		l.Close()
		wantLeftOut(t, log.take(), podOf("a"), 1)
		<-time.After(2 * period)
		if lines := log.take(); len(lines) > 0 {
			t.Errorf("after Close: %q", lines)
		}
	})
}

// A long error is cut off, wherever it stands, and the line says where the code logged it.
func TestLongErrors(t *testing.T) {
	bubble(t, func(t *testing.T, l *Limiter, _ klog.Logger, log *testLog, _ func() int) {
		long, short := errors.New(strings.Repeat("x", maxError+1)), errors.New(strings.Repeat("x", maxError))
		logger := l.Logger(textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(log))), podOf("a"))
		logger.Error(long, "It failed")
		logger.Info("It failed", "err", long)
		logger.Error(short, "It failed")
		logger.Error(nil, "It failed")
		for i, line := range log.take() {
			if cut := strings.Contains(line, "xx... ("); cut != (i < 2) || cut && !strings.Contains(line, "(2049 bytes)") || len(line) > maxError+200 {
				t.Errorf("line %d is %s", i, line)
			}
			if !strings.Contains(line, "loglimit_test.go:") {
				t.Errorf("the line comes from %.100s", line)
			}
		}
	})
}

// Without a Limiter nothing is limited.
func TestNoLimiter(t *testing.T) {
	log := &testLog{}
	for range 2 * maxLines {
		(*Limiter)(nil).Logger(leaklog.New(t, log), podOf("a")).Info("It failed")
	}
	if n := len(log.take()); n != 2*maxLines {
		t.Errorf("%d lines", n)
	}
}
