package manifests

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// dryRun has the API server judge an object, and keep nothing.
func dryRun() metav1.CreateOptions {
	return metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}, FieldValidation: metav1.FieldValidationStrict}
}

// wantRefusal wants an error with all of the texts; none if there is no text.
func wantRefusal(t *testing.T, err error, texts ...string) {
	t.Helper()
	if len(texts) == 0 && err != nil {
		t.Errorf("refused: %v", err)
	}
	for _, text := range texts {
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("got %v, want a refusal with %q", err, text)
		}
	}
}
