package run

import (
	"encoding"
	"fmt"
	"log/slog"
	"reflect"
	"strconv"
	"time"

	"github.com/sethvargo/go-envconfig"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// malformed returns what would be right if the value of a variable does not have the form of its type. The errors of
// envconfig are those of the parsers, and some do not name the variable.
func malformed(f reflect.StructField, env envconfig.Lookuper) error {
	name := variable(f)
	text, _ := env.Lookup(name)
	if text == "" {
		return nil
	}
	must := ""
	switch value := reflect.New(f.Type).Interface().(type) {
	case *time.Duration:
		if _, err := time.ParseDuration(text); err != nil {
			must = "a duration such as 30s, 10m or 2h"
		}
	case *slog.Level:
		if value.UnmarshalText([]byte(text)) != nil {
			must = "DEBUG, INFO, WARN or ERROR"
		}
	case *domain.Period:
		if err := value.UnmarshalText([]byte(text)); err != nil {
			must = fmt.Sprintf("an ISO 8601 duration such as PT8H, P2D or P1M (%s)", err)
		}
	case encoding.TextUnmarshaler:
		if err := value.UnmarshalText([]byte(text)); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	case *bool:
		if _, err := strconv.ParseBool(text); err != nil {
			must = "true or false"
		}
	default:
		switch {
		case f.Type.Kind() >= reflect.Int && f.Type.Kind() <= reflect.Int64:
			if _, err := strconv.ParseInt(text, 0, f.Type.Bits()); err != nil {
				must = "a whole number"
			}
		case f.Type.Kind() >= reflect.Uint && f.Type.Kind() <= reflect.Uint64:
			if _, err := strconv.ParseUint(text, 0, f.Type.Bits()); err != nil {
				must = "a whole number, and not negative"
			}
		}
	}
	if must == "" {
		return nil
	}
	return fmt.Errorf("%s is %q: it must be %s", name, text, must)
}
