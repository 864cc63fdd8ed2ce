package launch

import (
	"encoding/base64"
	"fmt"
	"strconv"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// userData is text for cloud-init.
type userData struct{ domain.Secret }

// Schema implements huma.SchemaProvider.
func (userData) Schema(huma.Registry) *huma.Schema {
	maxLength := domain.MaxUserData
	return &huma.Schema{Type: huma.TypeString, MaxLength: &maxLength}
}

// userDataBase64 is user_data that need not be text.
type userDataBase64 struct{ domain.Secret }

// Schema implements huma.SchemaProvider.
func (userDataBase64) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, ContentEncoding: "base64"}
}

// decode returns the bytes. Line breaks are skipped, because the command base64 makes them.
func (d *userDataBase64) decode() (domain.Secret, error) {
	data, err := base64.StdEncoding.DecodeString(value(d).Reveal())
	return domain.Secret(data), err
}

// checkUserData reports what is wrong with either form of an instance's user_data.
func (o launchInstance) checkUserData(wrong *faults, at func(field string) string) {
	data, err := o.UserDataBase64.decode()
	wrong.forbid(err != nil, at("user_data_base64"), "must be base64 with padding")
	wrong.forbid(o.UserDataBase64 != nil && value(o.UserData).Secret != "", at("user_data_base64"),
		"cannot be combined with user_data")
	for field, size := range map[string]int{"user_data": len(value(o.UserData).Secret), "user_data_base64": len(data)} {
		wrong.forbid(size > domain.MaxUserData, at(field),
			fmt.Sprintf("must have at most %d bytes", domain.MaxUserData))
	}
}

// hashedSecrets returns the request's secrets for its hash, and removes the encoded form of user_data from the request:
// it is hashed like the same text. Bytes that are no text are hashed in base64, under a key of their own.
func (in *launchRequest) hashedSecrets() []string {
	text, encoded := split(in.UserData.Secret, in.UserDataBase64)
	secrets := []string{text}
	if in.UserDataBase64 = nil; encoded != "" {
		secrets = append(secrets, "base64", encoded)
	}
	for n := range in.Instances {
		i := &in.Instances[n]
		if i.UserData == nil && i.UserDataBase64 == nil {
			continue
		}
		text, encoded := split(value(i.UserData).Secret, i.UserDataBase64)
		secrets = append(secrets, strconv.Itoa(n), text)
		if encoded != "" {
			secrets = append(secrets, "base64", encoded)
		}
		i.UserData, i.UserDataBase64 = &userData{}, nil
	}
	return secrets
}

// split returns user_data as text, or in base64 if it is no text.
func split(plain domain.Secret, d *userDataBase64) (text, encoded string) {
	data, err := d.decode()
	switch {
	case d == nil:
		return plain.Reveal(), ""
	case err == nil && utf8.ValidString(data.Reveal()):
		return data.Reveal(), ""
	}
	return "", base64.StdEncoding.EncodeToString([]byte(data))
}
