package taint

import (
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Taint selects taints of a Node.
type Taint struct {
	key string
	// value is nil for any value; effect is empty for any effect.
	value  *string
	effect corev1.TaintEffect
}

// Parse reads a taint in the form of `kubectl taint`: key, key:Effect or
// key=value:Effect. Without an effect it selects every effect, and without a value every
// value. The error says what is wrong with text.
func Parse(text string) (Taint, error) {
	left, effect, hasEffect := strings.Cut(text, ":")
	key, value, hasValue := strings.Cut(left, "=")
	t := Taint{key: key}
	var errs []error
	for _, message := range validation.IsQualifiedName(key) {
		errs = append(errs, fmt.Errorf("key: %s", message))
	}
	if hasValue {
		t.value = &value
		for _, message := range validation.IsValidLabelValue(value) {
			errs = append(errs, fmt.Errorf("value: %s", message))
		}
		if !hasEffect {
			errs = append(errs, errors.New("a value needs an effect: key=value:Effect"))
		}
	}
	if hasEffect {
		t.effect = corev1.TaintEffect(effect)
		switch t.effect {
		case corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute:
		default:
			errs = append(errs, errors.New("effect: must be NoSchedule, PreferNoSchedule or NoExecute"))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return Taint{}, fmt.Errorf("Invalid value: %q: %w", text, err)
	}
	return t, nil
}

// String returns the taint in the form that Parse reads.
func (t Taint) String() string {
	text := t.key
	if t.value != nil {
		text += "=" + *t.value
	}
	if t.effect != "" {
		text += ":" + string(t.effect)
	}
	return text
}

// matches tells whether t selects a Node's taint.
func (t Taint) matches(of corev1.Taint) bool {
	return of.Key == t.key &&
		(t.value == nil || of.Value == *t.value) &&
		(t.effect == "" || of.Effect == t.effect)
}
